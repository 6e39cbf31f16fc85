package main

// whoCallsWhom shows the calls of signing and verifying. Its columns are signing,
// verifying with gcpjwt, and verifying without.
func whoCallsWhom() *drawing {
	d := &drawing{
		title: "Who calls whom",
		desc: "A program with gcpjwt calls Google Cloud once per signature: Cloud KMS, IAM Credentials or App Engine. " +
			"A verifier with gcpjwt reads the public keys from Google Cloud and keeps them, so that no token costs a call. " +
			"The jwks handler publishes the public keys as a JWK Set to other verifiers: Envoy, API gateways, any JWT library. " +
			"A client gets its token from the signer and sends it with each request.",
		height: 550,
	}
	const (
		x1, x2, x3 = 40, 288, 536 // the columns
		w          = 224
		c1, c2, c3 = x1 + w/2, x2 + w/2, x3 + w/2

		google, programs, laneHeight = 24, 224, 116 // the rows
		services, parts, boxHeight   = google + 40, programs + 40, 60
		others, othersHeight         = 400, 76
		requests                     = others + othersHeight/2
	)

	d.lane(rect{24, google, 752, laneHeight}, "Google Cloud: one of these holds the private key")
	const serviceW, gap = 200, 60 // not in the columns, as all parts call the same service
	for i, service := range []struct{ name, key string }{
		{"Cloud KMS", "a CryptoKey of yours"},
		{"IAM Credentials", "a service account’s key"},
		{"App Engine", "the app’s key"},
	} {
		x := x1 + i*(serviceW+gap)
		d.box(plain, rect{x, services, serviceW, boxHeight}, service.name, service.key)
		if i > 0 {
			d.label(muted, middle, x-gap/2, services+boxHeight/2+5, "or")
		}
	}

	d.lane(rect{24, programs, 752, laneHeight}, "Your programs, with gcpjwt")
	d.box(blue, rect{x1, parts, w, boxHeight}, "Signer", "makes tokens")
	d.box(green, rect{x2, parts, w, boxHeight}, "Keyfunc", "middleware, grpcauth")
	d.box(green, rect{x3, parts, w, boxHeight}, "jwks handler", "publishes public keys")
	call := func(t tone, x int, lines ...string) {
		d.arrow(t, x, programs, x, google+laneHeight)
		d.label(t, start, x+14, 178, lines...)
	}
	call(blue, c1, "one call", "per signature")
	call(green, c2, "public keys, kept:", "no call per token")
	call(green, c3, "public keys,", "kept")

	d.box(purple, rect{x1, others, w, othersHeight}, "Client", "holds a token")
	d.box(plain, rect{x3, others, w, othersHeight}, "Other verifiers", "Envoy, API gateways,", "any JWT library")
	d.dashed(purple, c1, parts+boxHeight, c1, others)
	d.label(purple, start, c1+14, 376, "token")
	d.dashed(purple, x1+w, requests, x3, requests)
	d.dashed(purple, c2, requests, c2, parts+boxHeight)
	d.label(purple, middle, c2, requests+24, "requests with the token")
	d.arrow(green, c3, others, c3, parts+boxHeight)
	d.label(green, start, c3+14, 376, "JWK Set, kept")

	d.label(muted, start, 24, 512,
		"Certificates of an account are kept if `EnableCache` is set.",
		"HMAC keys never leave Cloud KMS, so there each token costs a call to verify, too.")
	return d
}
