package scanport

import (
	"encoding/base64"
	"errors"
	"slices"
	"strings"
	"testing"

	"tidemark/timestamp"
)

func seen(bucket string, number uint64) Seen {
	return Seen{Cluster: ClusterKey("c1"), Epoch: 1700000000, Bucket: bucket,
		At: timestamp.Ref{Generation: 1, RollbackID: 2, Number: number, Hash: 1<<64 - 1}}
}

func token(bucket string) string {
	s := seen(bucket, 5)
	return s.Token()
}

func TestSessionTokens(t *testing.T) {
	all := []Seen{seen("world", 57), seen(strings.Repeat("b", 100), 1<<40), seen("Île", 0)}
	text := Tokens(all)
	if got, err := ParseSession(text); err != nil || !slices.Equal(got, all) {
		t.Errorf("%+v, %v", got, err)
	}
	spaced := strings.ReplaceAll(text, ",", ", ")
	if got, err := ParseSession(spaced); err != nil || !slices.Equal(got, all) { // as several headers are joined
		t.Errorf("with spaces: %+v, %v", got, err)
	}
	if got, err := ParseSession(""); err != nil || got != nil {
		t.Errorf("none: %v, %v", got, err)
	}
	one := all[0].Token()
	if strings.ContainsAny(text, `"\+/=; `) || len(one) > 60 {
		t.Errorf("%s", text)
	}
	for i := range one { // changes one character at a time
		other := byte('A')
		if one[i] == other {
			other = 'B'
		}
		if got, err := ParseSession(one[:i] + string(other) + one[i+1:]); !errors.Is(err, ErrSession) {
			t.Errorf("letter %d changed: %+v, %v", i, got, err)
		}
		if got, err := ParseSession(one[:i]); i > 0 && !errors.Is(err, ErrSession) {
			t.Errorf("cut after %d: %+v, %v", i, got, err)
		}
	}
	newer := all[0].append(nil)
	newer[0] = 9
	for bad, want := range map[string]string{
		"hello world": "illegal base64", "aGVsbG8": "it is truncated", one + ",": "it is truncated", one + "=": "illegal base64",
		base64.RawURLEncoding.EncodeToString(newer): "format is 9",
		token(""):                           "has no bucket",
		token("\xff"):                       "has no bucket",
		strings.Repeat("A", maxToken+1):     "limit is 2048",
		strings.Repeat(one+",", 1024) + one: "1025 tokens",
		strings.Repeat("A", 64<<10+1):       "65537 bytes",
	} {
		if _, err := ParseSession(bad); !errors.Is(err, ErrSession) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %q", bad, err, want)
		}
	}
}

// TestSeenIsOrdered checks the order: by epoch, generation, rollback and number.
func TestSeenIsOrdered(t *testing.T) {
	list := []Seen{{}, {At: timestamp.Ref{Number: 9}}, {At: timestamp.Ref{RollbackID: 1}},
		{At: timestamp.Ref{RollbackID: 1, Number: 1}},
		{At: timestamp.Ref{Generation: 1}}, {Epoch: 1}, {Epoch: 1, At: timestamp.Ref{Number: 1}}}
	for i := range list {
		for k := range list {
			if got := list[i].Compare(&list[k]); got != min(1, max(-1, i-k)) {
				t.Errorf("%+v to %+v: %d", list[i], list[k], got)
			}
		}
	}
}

func TestSeenOfAPlace(t *testing.T) {
	s := seen("world", 57)
	place := append(s.AppendSeen(nil), "rest"...)
	if got, rest, err := CutSeen(place); err != nil || got != s || string(rest) != "rest" {
		t.Errorf("%+v %q %v", got, rest, err)
	}
	for n := range len(place) - len("rest") {
		if _, _, err := CutSeen(place[:n]); !errors.Is(err, ErrSession) {
			t.Errorf("cut after %d: %v", n, err)
		}
	}
}

func FuzzSession(f *testing.F) {
	one := seen("world", 57)
	f.Add(one.Token() + "," + one.Token())
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		all, err := ParseSession(text)
		if err != nil {
			if !errors.Is(err, ErrSession) {
				t.Error(err)
			}
			return
		}
		if again, err := ParseSession(Tokens(all)); err != nil || !slices.Equal(again, all) {
			t.Errorf("%q: %+v, then %+v, %v", text, all, again, err)
		}
	})
}
