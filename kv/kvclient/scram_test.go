package kvclient

import (
	"errors"
	"strconv"
	"strings"
	"testing"

	xdg "github.com/xdg-go/scram"
)

// The examples of RFC 5802 section 5 and RFC 7677 section 3.
func TestScramVectors(t *testing.T) {
	tests := []struct {
		mech, nonce, serverFirst, final, serverFinal string
	}{
		{mechSHA1, "fyko+d2lbbFgONRv9qkxdawL",
			"r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096",
			"c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
			"v=rmF9pqV8S7suAoZWja4dJRkFsKQ="},
		{mechSHA256, "rOprNGfwEbeRWgbNEkqO",
			"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
			"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
			"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="},
	}
	for _, tt := range tests {
		t.Run(tt.mech, func(t *testing.T) {
			s := newScram(tt.mech, "user", "pencil", tt.nonce)
			if got, want := s.first(), "n,,n=user,r="+tt.nonce; got != want {
				t.Fatalf("first %q, want %q", got, want)
			}
			got, err := s.final(tt.serverFirst)
			if err != nil || got != tt.final {
				t.Fatalf("final %q, %v; want %q", got, err, tt.final)
			}
			if err := s.verify(tt.serverFinal); err != nil {
				t.Fatal(err)
			}
			if err := s.verify(strings.Replace(tt.serverFinal, "v=", "v=A", 1)); !errors.Is(err, ErrAuth) {
				t.Fatalf("a forged signature: %v", err)
			}
			if err := s.verify("e=other-error"); !errors.Is(err, ErrAuth) {
				t.Fatal(err)
			}
		})
	}
}

func TestScramRefuses(t *testing.T) {
	for name, first := range map[string]string{
		"nonce that is only ours":   "r=abc,s=QSXCR+Q6sek8bf92,i=4096",
		"foreign nonce":             "r=xyz123,s=QSXCR+Q6sek8bf92,i=4096",
		"no salt":                   "r=abcd,i=4096",
		"bad salt":                  "r=abcd,s=!!,i=4096",
		"no iterations":             "r=abcd,s=QSXCR+Q6sek8bf92",
		"zero iterations":           "r=abcd,s=QSXCR+Q6sek8bf92,i=0",
		"iterations to stall us":    "r=abcd,s=QSXCR+Q6sek8bf92,i=4000000000",
		"nothing":                   "",
		"attributes without equals": "r,s,i",
	} {
		s := newScram(mechSHA256, "u", "p", "abc")
		s.first()
		if _, err := s.final(first); !errors.Is(err, ErrAuth) {
			t.Errorf("%s: %v", name, err)
		}
		if err := s.verify("v="); !errors.Is(err, ErrAuth) {
			t.Errorf("%s: an empty signature passes: %v", name, err)
		}
	}
	s := newScram(mechSHA1, "a=b,c", "p", "abc")
	if got := s.first(); got != "n,,n=a=3Db=2Cc,r=abc" {
		t.Fatalf("user name is not escaped: %q", got)
	}
}

func FuzzScramServerFirst(f *testing.F) {
	f.Add("r=abcd,s=QSXCR+Q6sek8bf92,i=16")
	f.Fuzz(func(t *testing.T, first string) {
		if strings.Contains(first, "i=") && len(first) > 0 && !strings.Contains(first, "i=16") {
			return // do not spend the fuzzer's time on key derivation
		}
		s := newScram(mechSHA1, "u", "p", "abc")
		s.first()
		_, _ = s.final(first)
	})
}

// TestKeysAreDerivedOnce checks that keys of a password are derived once per salt, and that the cache is bounded,
// whatever identities log in and whatever a node answers.
func TestKeysAreDerivedOnce(t *testing.T) {
	d := derivations{all: map[identity]*derivation{}}
	id := identity{mechanism: mechSHA1, user: "user", password: "pencil", nonce: "fyko+d2lbbFgONRv9qkxdawL"}
	proof := func(c *xdg.Client, salt string) string {
		talk := c.NewConversation()
		if _, err := talk.Step(""); err != nil {
			t.Fatal(err)
		}
		answer, err := talk.Step("r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=" + salt + ",i=4096")
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	const salt, other = "QSXCR+Q6sek8bf92", "W22ZaJ0SNY7soEsUEjb6gQ=="
	for range 2 {
		for _, s := range []string{salt, other} {
			if got, want := proof(d.of(id).client, s), proof(id.client(), s); got != want {
				t.Errorf("salt %s: %q, with keys that were not kept %q", s, got, want)
			}
		}
	}
	first := d.of(id)
	for range mostUses - d.all[id].uses {
		if d.of(id) != first {
			t.Fatal("a connection more derives keys anew")
		}
	}
	if d.of(id) == first {
		t.Errorf("what was derived is kept for more than %d exchanges", mostUses)
	}
	for i := range 3 * mostIdentities {
		d.of(identity{mechanism: mechSHA256, user: strconv.Itoa(i), password: "pencil"})
	}
	if len(d.all) > mostIdentities || d.of(identity{mechanism: mechPlain}) != nil {
		t.Errorf("%d identities are kept, at most %d are to be", len(d.all), mostIdentities)
	}
}
