package main

// cachedKey shows what becomes of public keys that are kept: while Google answers,
// while it doesn't, and when a token names a key that isn't among them.
func cachedKey() *drawing {
	d := &drawing{
		title: "The life of a cached key",
		desc: "Keys are fetched once and fresh for the lifetime that Google states. They are renewed early and in the background, " +
			"so that no token waits. While Google is down, fetches fail and are tried again further and further apart. " +
			"Old keys still serve for StaleIfError. After that verifying fails with ErrKeysUnavailable, which is a 503, until a fetch succeeds. " +
			"A token with an unknown kid causes one forced fetch. For a minute there is no other, however many such tokens come.",
		height: 486,
	}
	const left, right = 168, 776

	// Each lifetime begins before the one before it ends.
	y := 32
	d.row(y, "Google answers", "keys are renewed", "before they expire")
	for i, from := range []int{left, 356, 544} {
		at := y + i%2*40
		d.bars(at, bar{green, from, min(from+232, right), "fresh"})
		d.guide(from, at, y+92)
		d.mark(green, dot, from, y+92)
	}
	d.label(green, start, left+12, y+97, "first fetch")
	d.label(green, start, 356+12, y+97, "in the background")
	d.label(green, start, 544+12, y+97, "in the background")

	const expired, gone, back = 360, 532, 676
	y = 188
	d.row(y, "Google is down", "keys serve longer,", "but not for ever")
	d.bars(y,
		bar{green, left, expired, "fresh"},
		bar{amber, expired, gone, "stale, still in use"},
		bar{red, gone, back, "503"},
		bar{green, back, right, "fresh"})
	// The pauses grow up to a minute.
	for _, x := range []int{316, 328, 344, 372, 420, 484, 548, 612} {
		d.mark(red, cross, x, y+52)
	}
	d.mark(green, dot, back, y+52)
	d.span(amber, expired, gone, y+92, "`StaleIfError` (1 hour)")
	d.guide(expired, y, y+100)
	d.guide(gone, y, y+100)
	d.label(red, start, gone+12, y+97, "`ErrKeysUnavailable`")

	const forced, next = 252, 560
	y = 336
	d.row(y, "Unknown kid", "a new key, or", "forged: 401")
	for _, x := range []int{forced, 276, 312, 384, 400, 472, 520, next, 624, 640, 704} {
		d.mark(purple, triangle, x, y-12)
	}
	d.bars(y, bar{green, left, right, "known kids: no wait, no fetch"})
	d.mark(green, dot, forced, y+52)
	d.mark(green, dot, next, y+52)
	d.span(muted, forced+8, next-8, y+72, "a minute")
	d.label(green, end, forced-12, y+57, "one fetch")
	d.label(green, start, next+12, y+57, "the next, at the earliest")

	y = 462
	d.mark(green, dot, left+5, y-5)
	d.label(muted, start, left+18, y, "fetch")
	d.mark(red, cross, left+89, y-5)
	d.label(muted, start, left+102, y, "failed fetch")
	d.mark(purple, triangle, left+217, y-5)
	d.label(muted, start, left+230, y, "token with an unknown kid")
	return d
}
