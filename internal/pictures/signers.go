package main

// whichSigner is a tree of questions. Whoever answers no each time gets the signer
// to take where nothing else decides.
func whichSigner() *drawing {
	d := &drawing{
		title: "Which signer",
		desc: "If only Google's services check the token, you need no signer: Google's own ID tokens are free. " +
			"If nobody but you shall be able to check it, take an HMAC key in Cloud KMS. " +
			"If Google shall manage the key: App Engine on App Engine Standard; signBlob if you need a header of your own or more than 12 hours; else signJwt. " +
			"In all other cases take Cloud KMS with ES256.",
		height: 460,
	}
	const (
		x1, w1      = 24, 256
		x2, w2      = 328, 200
		x3, w3      = 576, 200
		top, pitch  = 24, 88
		high        = 60
		row1        = top
		row2        = row1 + pitch
		row3        = row2 + pitch
		row4        = row3 + pitch
		row5        = row4 + pitch
		half        = high / 2
		middleSpine = x2 + w2/2
		leftSpine   = x1 + w1/2
	)
	yes := func(from, to, row int) {
		d.arrow(muted, from, row+half, to, row+half)
		d.label(muted, start, from+10, row+half-8, "yes")
	}
	no := func(x, from, to int) {
		d.arrow(muted, x, from+high, x, to)
		d.label(muted, start, x+10, from+high+19, "no")
	}

	d.box(plain, rect{x1, row1, w1, high}, "Tokens only for Google?", "Cloud Run, Cloud Functions, IAP")
	yes(x1+w1, x3, row1)
	d.box(purple, rect{x3, row1, w3, high}, "No signer", "Google’s ID tokens: free")
	no(leftSpine, row1, row2)

	d.box(plain, rect{x1, row2, w1, high}, "Tokens only for yourself?", "nobody else can check them")
	yes(x1+w1, x3, row2)
	d.box(blue, rect{x3, row2, w3, high}, "Cloud KMS, HS256", "a call to sign and to verify")
	no(leftSpine, row2, row3)

	d.box(plain, rect{x1, row3, w1, high}, "Shall Google manage the key?", "RS256, and you can’t revoke it")
	yes(x1+w1, x2, row3)
	no(leftSpine, row3, row5)

	d.box(plain, rect{x2, row3, w2, high}, "On App Engine?", "in its standard environment")
	yes(x2+w2, x3, row3)
	d.box(blue, rect{x3, row3, w3, high}, "App Engine", "needs no role")
	no(middleSpine, row3, row4)

	d.box(plain, rect{x2, row4, w2, high}, "A header of your own?", "or `exp` over 12 hours ahead")
	yes(x2+w2, x3, row4)
	d.box(blue, rect{x3, row4, w3, high}, "signBlob", "a service account")
	no(middleSpine, row4, row5)
	d.box(blue, rect{x2, row5, w2, high}, "signJwt", "a service account")

	d.box(green, rect{x1, row5, w1, high}, "Cloud KMS, ES256", "if nothing else decides")
	return d
}
