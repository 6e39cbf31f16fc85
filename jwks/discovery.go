package jwks

import (
	"encoding/json"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/someone1/gcp-jwt-go/v3/internal/errs"
	"github.com/someone1/gcp-jwt-go/v3/internal/fetch"
)

// Where an issuer's documents are, below its path or, for the last one, before it.
const (
	pathDiscovery = "/.well-known/openid-configuration"       // OpenID Connect Discovery 1.0 section 4
	pathSet       = "/.well-known/jwks.json"                  // our choice; the documents name it
	pathMetadata  = "/.well-known/oauth-authorization-server" // RFC 8414 section 3
)

// NewDiscoveryHandler returns a handler that makes issuer one whose tokens consumers
// can verify by its name alone. It is for the root of the issuer's server and serves
//
//   - issuer's path + /.well-known/openid-configuration: the discovery document
//   - /.well-known/oauth-authorization-server + issuer's path: the same one (RFC 8414)
//   - issuer's path + /.well-known/jwks.json: the JWK Set, as [NewHandler] does
//
// and 404 for all else. A slash at the end of issuer's path counts for nothing there,
// but it belongs to the issuer: iss in tokens has to be issuer to the letter.
//
// The document has issuer, jwks_uri, response_types_supported,
// subject_types_supported and id_token_signing_alg_values_supported, which are the
// algorithms of the keys. No authorization endpoint is in it: tokens are made
// elsewhere. Everything that [NewHandler] says holds for both documents.
//
// It panics if source is nil or issuer can't work. The issuer has to be an https URL (or
// http on loopback) in its usual spelling, without user, query and fragment. Its path has
// no escapes, no empty elements and no dots.
func NewDiscoveryHandler(issuer string, source Source, options ...HandlerOption) http.Handler {
	h := newHandler("NewDiscoveryHandler", source, options)
	if err := checkIssuer(issuer); err != nil {
		panic("jwks: NewDiscoveryHandler: " + err.Error())
	}
	base := strings.TrimSuffix(issuer, "/")
	u, _ := url.Parse(base) // checkIssuer has
	render := func(keys []Key) ([]byte, error) { return discovery(issuer, base+pathSet, keys) }
	metadata := &document{contentType: "application/json", render: render}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case u.Path + pathDiscovery, pathMetadata + u.Path:
			h.serve(w, r, metadata)
		case u.Path + pathSet:
			h.serveSet(w, r)
		default:
			http.NotFound(w, r)
		}
	})
}

// checkIssuer wants an issuer that consumers arrive at whether they add a path to
// its text or take the URL apart.
func checkIssuer(issuer string) error {
	if err := fetch.CheckURL("issuer", issuer); err != nil {
		return err
	}
	u, err := url.Parse(issuer)
	if err != nil {
		return err
	}
	below := strings.TrimSuffix(u.Path, "/")
	if u.String() != issuer || strings.Contains(issuer, "%") || below == "/" || below != "" && path.Clean(below) != below {
		return errs.Errorf("%w: issuer %s: want a lower-case scheme and a path without escapes, empty elements and dots",
			errs.ErrInvalidConfig, errs.Quote(issuer))
	}
	return nil
}

// discovery returns the discovery document.
func discovery(issuer, set string, keys []Key) ([]byte, error) {
	algorithms := []string{}
	for _, key := range keys {
		if _, err := key.check(); err != nil {
			return nil, err
		}
		for _, alg := range key.serves() {
			if !slices.Contains(algorithms, alg) {
				algorithms = append(algorithms, alg)
			}
		}
	}
	if i := slices.Index(algorithms, edDSA); i >= 0 {
		algorithms = slices.Insert(algorithms, i+1, "Ed25519") // tokens may have either name
	}
	return json.Marshal(struct {
		Issuer        string   `json:"issuer"`
		Set           string   `json:"jwks_uri"`
		ResponseTypes []string `json:"response_types_supported"`
		SubjectTypes  []string `json:"subject_types_supported"`
		Algorithms    []string `json:"id_token_signing_alg_values_supported"`
	}{issuer, set, []string{"id_token"}, []string{"public"}, algorithms})
}
