package main

import (
	"io"
	"log"
	"strings"
	"testing"

	"github.com/golang-jwt/jwt/v5"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	log.SetOutput(io.Discard)
	goleak.VerifyTestMain(m)
}

func TestRunEmbedded(t *testing.T) {
	// Set here so that the test puts back what it found.
	t.Setenv("API_HOST", "")
	t.Setenv("API_PORT", "")
	var out strings.Builder
	if err := runEmbedded(t.Context(), nil, &out); err != nil {
		t.Fatalf("runEmbedded: %v\n%s", err, &out)
	}
	for status, want := range map[string]int{"200 OK": 2, "401 Unauthorized": 2} {
		if got := strings.Count(out.String(), status+"\n"); got != want {
			t.Errorf("%d answers with %s, want %d:\n%s", got, status, want, &out)
		}
	}
}

func TestForge(t *testing.T) {
	token, err := jwt.New(jwt.SigningMethodHS256).SignedString([]byte("key"))
	if err != nil {
		t.Fatal(err)
	}
	claims := new(jwt.RegisteredClaims)
	forged, parts, err := jwt.NewParser().ParseUnverified(forge(token), claims)
	if err != nil {
		t.Fatal(err)
	}
	if claims.Subject != "root" || parts[2] != token[strings.LastIndex(token, ".")+1:] {
		t.Errorf("forged token has claims %+v, parts %q", forged.Claims, parts)
	}
}
