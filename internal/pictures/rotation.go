package main

// rotationTimeline shows the versions of a CryptoKey, and what the programs make of
// them, while version 2 takes over from version 1.
func rotationTimeline() *drawing {
	d := &drawing{
		title: "A rotation from version 1 to version 2",
		desc: "You create version 2. It is pending first, then ENABLED. The publisher lists it within KeyRefresh. " +
			"Verifiers know it a max-age of the JWK Set later. The signer starts with version 2 when ActivationDelay " +
			"has passed since version 2 was generated. A token lifetime later the last token of version 1 has expired. " +
			"Now you disable version 1. The publisher drops it within KeyRefresh, and verifiers refuse it a max-age later.",
		height: 526,
	}
	const (
		begin      = 136
		created    = begin + 28
		enabled    = created + 84
		listed     = enabled + 84
		known      = listed + 76
		signs      = known + 28
		expired    = signs + 112
		disabled   = expired + 28
		unlisted   = disabled + 84
		forgotten  = unlisted + 76
		finish     = 776
		top, pitch = 64, 50
	)

	y := top
	for _, row := range []struct {
		name, detail string
		bars         []bar
	}{
		{"Version 1", "in Cloud KMS", []bar{{blue, begin, disabled, "ENABLED"}, {plain, disabled, finish, "DISABLED"}}},
		{"Version 2", "in Cloud KMS", []bar{{plain, created, enabled, "pending"}, {green, enabled, finish, "ENABLED"}}},
		{"Publisher", "lists", []bar{{blue, begin, listed, "1"}, {purple, listed, unlisted, "1 and 2"}, {green, unlisted, finish, "2"}}},
		{"Verifiers", "accept", []bar{{blue, begin, known, "1"}, {purple, known, forgotten, "1 and 2"}, {green, forgotten, finish, "2"}}},
		{"Signer", "signs with", []bar{{blue, begin, signs, "1"}, {green, signs, finish, "2"}}},
		{"Tokens", "of version 1", []bar{{blue, begin, expired, "good"}, {plain, expired, finish, "expired"}}},
	} {
		d.row(y, row.name, row.detail)
		d.bars(y, row.bars...)
		y += pitch
	}

	spans := y + 28
	const low = 44 // between the two rows of spans
	d.heading(start, created, 28, "You create version 2")
	d.heading(start, disabled, 28, "You disable version 1")
	d.guide(created, 36, top+pitch)
	d.guide(disabled, 36, spans+8)
	for _, x := range []int{listed, known, unlisted, forgotten} {
		d.guide(x, top+pitch, spans+8)
	}
	for _, x := range []int{enabled, signs, expired} {
		d.guide(x, top+pitch, spans+low+8)
	}
	d.span(muted, enabled, listed, spans, "`KeyRefresh`")
	d.span(muted, listed, known, spans, "max-age")
	d.span(muted, disabled, unlisted, spans, "`KeyRefresh`")
	d.span(muted, unlisted, forgotten, spans, "max-age")
	d.span(blue, enabled, signs, spans+low, "`ActivationDelay`")
	d.span(blue, signs, expired, spans+low, "token lifetime")

	d.label(muted, start, 24, spans+low+48,
		"Verifiers know version 2 before it signs if `ActivationDelay` is `KeyRefresh` + max-age or more.",
		"Wait for `KeyRefresh` + `ActivationDelay` + token lifetime before you disable version 1.")
	return d
}
