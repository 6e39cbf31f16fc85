package main

// status shows what the middleware looks at, in this order, and what it answers.
func status() *drawing {
	d := &drawing{
		title: "401, 403, 500 or 503",
		desc: "The middleware asks seven questions. The first no decides the answer. " +
			"Is there a bearer token? Else 401. Is it well-formed? Else 401 invalid_token. Is the server set up right? Else 500. " +
			"Can the keys be read? Else 503 with Retry-After. Are signature and dates good? Else 401 invalid_token. " +
			"Is the token for this service? Else 403 invalid_token. Has it the scopes? Else 403 insufficient_scope. " +
			"After seven times yes the handler runs.",
		height: 592,
	}
	const (
		left, w          = 24, 280
		answer, answerW  = 376, 208
		advice           = answer + answerW + 24
		top, pitch, high = 48, 68, 48
	)
	d.heading(start, left, 30, "What the middleware asks")
	d.heading(start, answer, 30, "HTTP")
	d.heading(start, advice, 30, "gRPC, what to do")

	y := top
	for _, row := range []struct {
		question, detail string
		tone             tone
		status, says     string
		code, advice     string
	}{
		{"A bearer token?", "in the Authorization header", amber, "401", "`Bearer`, no error", "Unauthenticated", "send a token"},
		{"Well-formed?", "16 KiB at most, dates are numbers", amber, "401", "`error=\"invalid_token\"`", "Unauthenticated", "get a new token"},
		{"Is the server set up right?", "else `ErrInvalidConfig`", red, "500", "", "Internal", "mend the server"},
		{"Can keys be read?", "else `ErrKeysUnavailable`", red, "503", "`Retry-After: 10`", "Unavailable", "try again later"},
		{"Signature and dates good?", "`alg`, `kid`, `exp`, `nbf`, `iat`", amber, "401", "`error=\"invalid_token\"`", "Unauthenticated", "get a new token"},
		{"For this service?", "`iss`, `aud`", purple, "403", "`error=\"invalid_token\"`", "PermissionDenied", "get a token for it"},
		{"All scopes there?", "`scope`, `scp`", purple, "403", "`error=\"insufficient_scope\"`", "PermissionDenied", "get the scopes"},
	} {
		d.box(plain, rect{left, y, w, high}, row.question, row.detail)
		if row.says == "" {
			d.box(row.tone, rect{answer, y, answerW, high}, row.status)
		} else {
			d.box(row.tone, rect{answer, y, answerW, high}, row.status, row.says)
		}
		d.arrow(muted, left+w, y+high/2, answer, y+high/2)
		d.label(muted, middle, left+w+32, y+high/2-8, "no")
		d.label(ink, start, advice, y+20, "`"+row.code+"`")
		d.label(muted, start, advice, y+20+lineHeight, row.advice)
		d.arrow(muted, left+w/2, y+high, left+w/2, y+pitch)
		d.label(muted, start, left+w/2+10, y+high+14, "yes")
		y += pitch
	}
	d.box(green, rect{left, y, w, high}, "Your handler runs", "`middleware.TokenFromContext`")
	return d
}
