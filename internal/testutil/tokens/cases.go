package tokens

import (
	"fmt"
	"net/http"
	"strings"
	"time"
)

const header = `{"alg":"EdDSA","typ":"JWT"}`

// Leeway is what clocks may differ by. It is so long that no case changes its status while
// the table is gone through.
const Leeway = 5 * time.Minute

// Cases are tokens for a verifier that takes Keyfunc, demands Issuer, Audience and Scope, and
// grants Leeway.
func Cases(now time.Time) []Case {
	var cases []Case
	add := func(status int, name, text string) { cases = append(cases, Case{name, text, status}) }
	at := func(offset time.Duration) string { return fmt.Sprint(now.Add(offset).Unix()) }
	// claims adds a token with changed claims, of which group tells what kind they are.
	claims := func(status int, group string, changes ...string) {
		add(status, group+" "+strings.Join(changes, " "), Sign(header, Payload(now, changes...)))
	}
	good := Sign(header, Payload(now))
	const (
		ok        = http.StatusOK
		refused   = http.StatusUnauthorized
		forbidden = http.StatusForbidden
	)

	add(ok, "good", good)
	add(ok, "with a kid", Sign(`{"alg":"EdDSA","kid":"known"}`, Payload(now)))
	add(ok, "by one of a set", Sign(`{"alg":"EdDSA","kid":"set"}`, Payload(now)))
	add(ok, "blanks in the JSON", Sign("\t{ \"alg\" : \"EdDSA\" }\n", "\r\n "+strings.ReplaceAll(Payload(now), ",", " ,\n ")+" "))

	// What is no token.
	add(refused, "two parts", good[:strings.LastIndexByte(good, '.')])
	add(refused, "four parts", good+".x")
	add(refused, "dots", "..")
	add(refused, "many dots", strings.Repeat(".", 1000))
	add(refused, "a word", "x")
	add(refused, "two words", "a b")
	add(refused, "too long", Sign(header, Payload(now, "x", `"`+strings.Repeat("x", 13000)+`"`)))
	add(refused, "padded", good+"==")
	add(refused, "other base64", strings.NewReplacer("-", "+", "_", "/").Replace(Sign(header, Payload(now, "x", `"ÿÿÿ~~~???"`)))+"/+")
	add(refused, "trailing bits", trailingBits(good))
	add(refused, "header no base64", "*"+good)
	add(refused, "header no JSON", Sign(`{"alg":"EdDSA"`, Payload(now)))
	for _, header := range []string{`null`, `[]`, `"EdDSA"`, `5`, `{}`, `{"alg":null}`, `{"alg":5}`, `{"alg":["EdDSA"]}`, `{"ALG":"EdDSA"}`, `{"alg":"eddsa"}`, `{"alg":""}`, `{"alg":"XY123"}`} {
		add(refused, "header "+header, Sign(header, Payload(now)))
	}
	for _, payload := range []string{`null`, `[]`, `"x"`, `5`, `{}`, ``, `{`, `{"exp"}`, `[` + Payload(now) + `]`, Payload(now) + `x`, Payload(now) + Payload(now)} {
		add(refused, "payload "+payload, Sign(header, payload))
	}

	// Who signed it.
	add(refused, "forged", Forge(good))
	add(refused, "no signature", good[:strings.LastIndexByte(good, '.')+1])
	add(refused, "alg none", encode([]byte(`{"alg":"none"}`))+"."+encode([]byte(Payload(now)))+".")
	add(refused, "another alg", Sign(`{"alg":"RS256"}`, Payload(now)))
	add(refused, "an alg of another case", Sign(`{"alg":"EDDSA"}`, Payload(now)))
	add(refused, "unknown kid", Sign(`{"alg":"EdDSA","kid":"x"}`, Payload(now)))
	add(refused, "kid of another type", Sign(`{"alg":"EdDSA","kid":5}`, Payload(now)))
	add(refused, "an empty set", Sign(`{"alg":"EdDSA","kid":"no set"}`, Payload(now)))
	add(refused, "a Keyfunc that forbids", Sign(`{"alg":"EdDSA","kid":"forbidden"}`, Payload(now)))
	add(http.StatusServiceUnavailable, "no keys", Sign(`{"alg":"EdDSA","kid":"down"}`, Payload(now)))
	add(http.StatusInternalServerError, "misconfigured", Sign(`{"alg":"EdDSA","kid":"misconfigured"}`, Payload(now)))
	add(http.StatusInternalServerError, "not configured", Sign(`{"alg":"EdDSA","kid":"unconfigured"}`, Payload(now)))
	add(http.StatusInternalServerError, "panic", Sign(`{"alg":"EdDSA","kid":"panic"}`, Payload(now)))

	// Members of the header.
	add(refused, "crit", Sign(`{"alg":"EdDSA","crit":["exp"]}`, Payload(now)))
	add(refused, "empty crit", Sign(`{"alg":"EdDSA","crit":[]}`, Payload(now)))
	add(refused, "null crit", Sign(`{"alg":"EdDSA","crit":null}`, Payload(now)))
	add(refused, "escaped crit", Sign(`{"alg":"EdDSA","\u0063rit":["b64"],"b64":false}`, Payload(now)))
	add(refused, "alg twice", Sign(`{"alg":"none","alg":"EdDSA"}`, Payload(now)))
	add(refused, "kid twice", Sign(`{"alg":"EdDSA","kid":"x","kid":"known"}`, Payload(now)))
	add(ok, "ALG beside alg", Sign(`{"alg":"EdDSA","ALG":"none"}`, Payload(now)))

	// Dates.
	for _, exp := range []string{"", `0`, `-0`, `-1`, `null`, `true`, `{}`, `[]`, `""`, `"0"`, `"` + at(time.Hour) + `"`, `1e400`, `-1e400`, `1e300`, `253402300800`, `253402300799.5`, at(-10 * time.Minute), at(-time.Hour)} {
		claims(refused, "exp", "exp", exp)
	}
	for _, exp := range []string{`253402300799`, `2534023007.99e2`, at(time.Hour) + ".5", at(-time.Minute)} {
		claims(ok, "exp", "exp", exp)
	}
	for _, name := range []string{"nbf", "iat"} {
		for _, value := range []string{`1e19`, `9223372036854775807`, `-1`, `null`, `"1"`, `[1]`, `253402300800`, at(time.Hour), at(10 * time.Minute)} {
			claims(refused, "date", name, value)
		}
		for _, value := range []string{"", `0`, `0.5`, `1e9`, at(time.Minute)} {
			claims(ok, "date", name, value)
		}
	}

	// Names.
	for _, name := range []string{"iss", "sub", "aud", "exp", "nbf", "iat", "jti", "scope", "scp", "other"} {
		claims(refused, "twice", name, `null,"`+name+`":null`)
	}
	claims(refused, "twice, escaped", "aud", `"`+Audience+`","\u0061ud":null`)
	claims(refused, "twice, last one good", "aud", `"x","aud":"`+Audience+`"`)
	claims(refused, "other case", "exp", "", "EXP", at(time.Hour))
	claims(forbidden, "wrong and in another case", "aud", `"x"`, "aud ", `"`+Audience+`"`)

	// For whom it is.
	for _, aud := range []string{`["x","` + Audience + `"]`, `["` + Audience + `"]`} {
		claims(ok, "aud", "aud", aud)
	}
	for _, aud := range []string{"", `null`, `""`, `[]`, `[""]`, `"x"`, `"` + Audience + `/"`, `"` + strings.ToUpper(Audience) + `"`} {
		claims(forbidden, "aud", "aud", aud)
	}
	for _, aud := range []string{`5`, `true`, `{}`, `["` + Audience + `",5]`, `[["` + Audience + `"]]`} {
		claims(refused, "aud", "aud", aud)
	}
	for _, iss := range []string{"", `""`, `"x"`, `"` + Issuer + `/"`} {
		claims(forbidden, "iss", "iss", iss)
	}
	for _, iss := range []string{`5`, `["` + Issuer + `"]`} {
		claims(refused, "iss", "iss", iss)
	}
	claims(refused, "expired, for others", "exp", at(-time.Hour), "aud", `"x"`)
	add(refused, "forged, for others", Forge(Sign(header, Payload(now, "aud", `"x"`))))
	add(refused, "forged, expired", Forge(Sign(header, Payload(now, "exp", "1"))))

	// What it may do.
	for _, scope := range []string{`"invoices.read"`, `["invoices.read"]`, `"a  invoices.read b"`, `["a","invoices.read"]`} {
		claims(ok, "scope", "scope", scope)
		claims(ok, "scp", "scope", "", "scp", scope)
		claims(ok, "scope and scp", "scope", `"x"`, "scp", scope)
	}
	for _, scope := range []string{"", `null`, `""`, `[]`, `"invoices"`, `"invoices.read.x"`, `"INVOICES.READ"`, `["a invoices.read"]`, `"a,invoices.read"`} {
		claims(forbidden, "scope", "scope", scope)
	}
	for _, scope := range []string{`5`, `{}`, `[5]`} {
		claims(refused, "scope", "scope", scope)
	}

	// Tokens that cost a call.
	mac := signMAC(Payload(now))
	add(ok, "MAC", mac)
	add(refused, "MAC, forged", Forge(mac))
	add(refused, "MAC, expired", signMAC(Payload(now, "exp", "1")))
	add(refused, "MAC, for others", signMAC(Payload(now, "aud", `"x"`)))
	add(refused, "MAC, by another", signMAC(Payload(now, "iss", `"x"`)))
	add(refused, "MAC, without the scope", signMAC(Payload(now, "scope", `"x"`)))
	return cases
}

// trailingBits spells a token's signature in another way, which decodes to the same
// bytes unless decoding is strict.
func trailingBits(token string) string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	last := len(token) - 1
	return token[:last] + string(alphabet[strings.IndexByte(alphabet, token[last])+1])
}
