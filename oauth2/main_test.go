package oauth2_test

import (
	"encoding/json"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"go.uber.org/goleak"

	"github.com/someone1/gcp-jwt-go/v3/internal/systest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	account  = systest.Account
	audience = "https://api.example.com"
)

// parse verifies a token and returns its claims.
func parse(t *testing.T, text string, keyfunc jwt.Keyfunc) jwt.MapClaims {
	t.Helper()
	claims := jwt.MapClaims{}
	if _, err := jwt.NewParser(jwt.WithJSONNumber()).ParseWithClaims(text, claims, keyfunc); err != nil {
		t.Fatalf("the token doesn't verify: %v", err)
	}
	return claims
}

// unixTime returns a time claim.
func unixTime(t *testing.T, claims jwt.MapClaims, name string) time.Time {
	t.Helper()
	number, _ := claims[name].(json.Number)
	seconds, err := number.Int64()
	if err != nil {
		t.Fatalf("claim %s: %v", name, err)
	}
	return time.Unix(seconds, 0)
}

// read returns the body of a response.
func read(t *testing.T, response *http.Response) string {
	t.Helper()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}
