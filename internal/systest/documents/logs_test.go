package documents_test

import (
	"context"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"golang.org/x/oauth2"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/internal/systest"
	"github.com/someone1/gcp-jwt-go/v3/internal/testutil"
	"github.com/someone1/gcp-jwt-go/v3/jwks"
	gcpoauth2 "github.com/someone1/gcp-jwt-go/v3/oauth2"
)

// A recorder is a handler that keeps the records that it gets.
type recorder struct {
	mu   sync.Mutex
	rows map[string]bool // level, message and attributes, as in the table
}

func (r *recorder) Enabled(context.Context, slog.Level) bool { return true }

func (r *recorder) Handle(_ context.Context, record slog.Record) error {
	var names []string
	record.Attrs(func(a slog.Attr) bool {
		names = append(names, a.Key)
		return true
	})
	level := strings.ToUpper(record.Level.String()[:1]) + strings.ToLower(record.Level.String()[1:])
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rows[strings.Join([]string{level, record.Message, strings.Join(names, ", ")}, " | ")] = true
	return nil
}

func (r *recorder) WithAttrs([]slog.Attr) slog.Handler { return r }
func (r *recorder) WithGroup(string) slog.Handler      { return r }

// has fails the test unless a record has come by now. It says who should have logged it.
func (r *recorder) has(t *testing.T, who, message string) {
	t.Helper()
	synctest.Wait() // some records come from the background
	r.mu.Lock()
	defer r.mu.Unlock()
	for row := range r.rows {
		if strings.Contains(row, "| gcpjwt: "+message+" |") {
			return
		}
	}
	t.Errorf("%s: nobody logged %q", who, message)
}

// Each thing that the library logs about, and how it comes about.
var logged = map[string]func(t *testing.T, r *recorder, logger *slog.Logger){
	"a rotation": func(t *testing.T, r *recorder, logger *slog.Logger) {
		server, client := systest.StartKMS(t, testutil.InMemory())
		version := systest.Create(t, server, systest.P256)
		config := &gcpjwt.KMSConfig{KeyPath: systest.CryptoKeyOf(version), KMSClient: client, Logger: logger}
		signer, err := gcpjwt.NewKMSSigner(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		r.has(t, "a Signer", "a version of a Cloud KMS key comes into use")
		text, err := signer.Sign(t.Context(), jwt.MapClaims{"sub": "alice"})
		if err != nil {
			t.Fatal(err)
		}
		r.has(t, "a Signer", "a version of a Cloud KMS key signs for the first time in this process")
		if err := systest.Verify(text, signer.Keyfunc); err != nil {
			t.Fatal(err)
		}

		server.Stop()
		time.Sleep(systest.Refresh / 2)
		if err := systest.Verify(text, signer.Keyfunc); err != nil {
			t.Fatal(err)
		}
		time.Sleep(systest.FetchLimit)
		r.has(t, "a Keyfunc", "keeping the known versions of a Cloud KMS key")
		if err := server.Restart(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(systest.Backoff)

		server.Deny("cloudkms.cryptoKeyVersions.viewPublicKey")
		if _, err := server.CreateVersion(config.KeyPath); err != nil {
			t.Fatal(err)
		}
		server.SetState(version, systest.Disabled)
		time.Sleep(systest.Refresh + time.Second)
		_ = systest.Verify(text, signer.Keyfunc)
		r.has(t, "a Keyfunc", "a version of a Cloud KMS key goes out of use")
		r.has(t, "a Keyfunc", "a public key of a Cloud KMS key could not be read yet")
	},
	"certificates": func(t *testing.T, r *recorder, logger *slog.Logger) {
		server, config := systest.StartIAM(t, testutil.InMemory())
		config.EnableCache, config.Logger = true, logger
		keepsKeys(t, r, gcpjwt.IAMVerifyKeyfunc(t.Context(), config),
			systest.Sign(t, gcpjwt.NewIAMContext(t.Context(), config), gcpjwt.SigningMethodIAMBlob, nil),
			server.Stop)
	},
	"App Engine": func(t *testing.T, r *recorder, _ *slog.Logger) {
		server, err := testutil.NewAppEngine(testutil.InMemory())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(server.Close)
		ctx := server.Context(t.Context())
		keepsKeys(t, r, gcpjwt.AppEngineVerifyKeyfunc(ctx, true, systest.OwnCache()),
			systest.Sign(t, ctx, gcpjwt.SigningMethodAppEngine, nil), server.Stop)
	},
	"a JWK Set": func(t *testing.T, r *recorder, logger *slog.Logger) {
		server, config := systest.StartIAM(t, testutil.InMemory())
		keyfunc, err := jwks.NewKeyfunc(t.Context(), &jwks.Config{
			URL: server.JWKURL() + systest.Account, Client: server.Client(), Logger: logger,
		})
		if err != nil {
			t.Fatal(err)
		}
		text := systest.Sign(t, gcpjwt.NewIAMContext(t.Context(), config), gcpjwt.SigningMethodIAMBlob, nil)
		keepsKeys(t, r, keyfunc, text, server.Stop)
	},
	"a handler without keys": func(t *testing.T, r *recorder, _ *slog.Logger) {
		handler := jwks.NewHandler(noKeys{})
		systest.Body(handler, httptest.NewRequest(http.MethodGet, "/", nil))
		r.has(t, "a jwks handler", "no public keys to publish")
	},
	"a token source": func(t *testing.T, r *recorder, logger *slog.Logger) {
		signer, stop := tokenSigner(t, logger)
		source, err := gcpoauth2.NewTokenSource(t.Context(), gcpoauth2.Config{Signer: signer})
		keepsToken(t, r, source, err, stop)
	},
	"an exchange": func(t *testing.T, r *recorder, logger *slog.Logger) {
		signer, stop := tokenSigner(t, logger)
		source, err := gcpoauth2.NewJWTBearerSource(t.Context(), gcpoauth2.ExchangeConfig{
			Config:   gcpoauth2.Config{Signer: signer, Issuer: "alice"},
			TokenURL: "https://login.example.com/token",
			Client: &http.Client{Transport: systest.Transport(func(r *http.Request) (*http.Response, error) {
				body := io.NopCloser(strings.NewReader(`{"access_token": "x", "token_type": "Bearer", "expires_in": 3600}`))
				return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: body, Request: r}, nil
			})},
		})
		keepsToken(t, r, source, err, stop)
	},
}

// keepsKeys lets the origin of published keys fail until shortly before they expire.
func keepsKeys(t *testing.T, r *recorder, keyfunc jwt.Keyfunc, text string, stop func()) {
	t.Helper()
	if err := systest.Verify(text, keyfunc); err != nil {
		t.Fatal(err)
	}
	stop()
	for range 24 * 60 {
		time.Sleep(time.Minute)
		if err := systest.Verify(text, keyfunc); err != nil {
			break
		}
	}
	r.has(t, "a Keyfunc", "keeping the known keys")
}

// tokenSigner returns a Signer and what ends its server.
func tokenSigner(t *testing.T, logger *slog.Logger) (*gcpjwt.Signer, func()) {
	t.Helper()
	server, config := systest.StartKMSKey(t, systest.P256, testutil.InMemory())
	config.Logger = logger
	signer, err := gcpjwt.NewKMSSigner(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	return signer, server.Stop
}

// keepsToken lets the signer of a source fail until shortly before its token expires.
func keepsToken(t *testing.T, r *recorder, source oauth2.TokenSource, err error, stop func()) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	stop()
	time.Sleep(57 * time.Minute)
	if _, err := source.Token(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Minute)
	r.has(t, "a token source", "keeping the known token")
}

type noKeys struct{}

func (noKeys) PublicKeys(context.Context) ([]jwks.Key, error) {
	return nil, errors.New("there are none")
}

// TestLogTable checks the table of what is logged in OPERATIONS.md: it has each record
// that comes about, with its level and its attributes, and no others.
func TestLogTable(t *testing.T) {
	atTop(t)
	const operations = "docs/OPERATIONS.md"
	documented := make(map[string]bool)
	for _, cells := range tableAfter(t, operations, "## What is logged")[1:] {
		documented[strings.Join([]string{cells[0], strings.Trim(cells[1], "`"), cells[2]}, " | ")] = true
	}
	all := make(map[string]bool)
	for name, provoke := range logged {
		t.Run(name, func(t *testing.T) {
			r := &recorder{rows: make(map[string]bool)}
			logger := slog.New(r)
			defer slog.SetDefault(slog.Default())
			slog.SetDefault(logger)
			defer func() { maps.Copy(all, r.rows) }()
			synctest.Test(t, func(t *testing.T) { provoke(t, r, logger) })
		})
	}
	for row := range all {
		if !documented[row] {
			t.Errorf("%s: the table lacks: %s", operations, row)
		}
	}
	for row := range documented {
		if !all[row] {
			t.Errorf("%s: nothing logs: %s", operations, row)
		}
	}
	for _, message := range messages(t) {
		logs := func(row string) bool { return strings.Contains(row, "| gcpjwt: "+message+" |") }
		if !slices.ContainsFunc(slices.Collect(maps.Keys(all)), logs) {
			t.Errorf("no test here has %q logged", message)
		}
	}
}

// messages returns the texts that the packages' code logs. Each is a constant in the call, or
// else in the function around it.
func messages(t *testing.T) (texts []string) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (path == "examples" || path == filepath.Join("internal", "logs") || path != "." && entry.Name()[0] == '.'):
			return fs.SkipDir
		case !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		for _, declaration := range file.Decls {
			calls := 0
			var inCalls, around []string
			ast.Inspect(declaration, func(node ast.Node) bool {
				switch node := node.(type) {
				case *ast.BasicLit:
					if text, err := strconv.Unquote(node.Value); err == nil && strings.Contains(text, " ") {
						around = append(around, text)
					}
				case *ast.CallExpr:
					if !slices.ContainsFunc(node.Args, isLevel) {
						return true
					}
					calls++
					for _, arg := range node.Args {
						if lit, ok := arg.(*ast.BasicLit); ok {
							if text, err := strconv.Unquote(lit.Value); err == nil && strings.Contains(text, " ") {
								inCalls = append(inCalls, text)
							}
						}
					}
				}
				return true
			})
			if len(inCalls) < calls {
				inCalls = around
			}
			texts = append(texts, inCalls...)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(texts) == 0 {
		t.Fatal("nothing is logged")
	}
	return texts
}

// isLevel reports whether an expression is a level of slog's, such as slog.LevelWarn.
func isLevel(expr ast.Expr) bool {
	selector, ok := expr.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	pkg, ok := selector.X.(*ast.Ident)
	return ok && pkg.Name == "slog" && strings.HasPrefix(selector.Sel.Name, "Level")
}
