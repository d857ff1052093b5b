package timestamp

import (
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	_ "tidemark/internal/testing/draws"
)

func vec(pairs ...uint64) Vector {
	t := New(len(pairs) / 2)
	for v := range t.Len() {
		t.Set(v, Position{pairs[2*v], pairs[2*v+1]})
	}
	return t
}

func TestOrder(t *testing.T) {
	for _, c := range []struct {
		name string
		a, b Vector
		want Order
	}{
		{"same", vec(1, 5, 2, 6), vec(1, 5, 2, 6), Same},
		{"less in one", vec(1, 4, 2, 6), vec(1, 5, 2, 6), Less},
		{"greater in one", vec(1, 6, 2, 6), vec(1, 5, 2, 6), Greater},
		{"each ahead somewhere", vec(1, 4, 2, 7), vec(1, 5, 2, 6), Incomparable},
		{"another branch", vec(9, 5, 2, 6), vec(1, 5, 2, 6), Incomparable},
		{"an empty vbucket has no branch", vec(0, 0, 2, 6), vec(1, 5, 2, 6), Less},
		{"other length", vec(1, 5), vec(1, 5, 2, 6), Incomparable},
	} {
		if got := c.a.Compare(c.b); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

func TestMinMax(t *testing.T) {
	// The worked example of the design: HW of two indexers over four vbuckets.
	a, b := vec(1, 10, 2, 20, 0, 0, 4, 40), vec(1, 14, 2, 16, 0, 0, 4, 44)
	low, high := a.Clone(), a.Clone()
	if low.Min(b) != nil || !low.Equal(vec(1, 10, 2, 16, 0, 0, 4, 40)) {
		t.Errorf("min %v", low)
	}
	if high.Max(b) != nil || !high.Equal(vec(1, 14, 2, 20, 0, 0, 4, 44)) {
		t.Errorf("max %v", high)
	}
	if err := low.Min(vec(1, 1)); !errors.Is(err, ErrLength) {
		t.Errorf("min of unequal lengths: %v", err)
	}
}

func TestBranchRule(t *testing.T) {
	log := FailoverLog{{0xC, 500}, {0xB, 300}, {0xA, 0}}
	for _, c := range []struct {
		name  string
		uuid  uint64
		reach uint64
		want  bool
	}{
		{"left the old branch behind", 0xA, 350, false},
		{"on A up to where B begins", 0xA, 300, true},
		{"B continues on C", 0xB, 450, true},
		{"exactly at the branch", 0xB, 500, true},
		{"beyond it on the old one", 0xB, 501, false},
		{"on the newest, any seqno", 0xC, 1 << 60, true},
		{"unknown branch is valid only at 0", 0xD, 1, false},
		{"at 0 everything is valid", 0xD, 0, true},
		{"a window beyond the branch's end hides lost items", 0xB, 510, false},
	} {
		if got := log.Valid(c.uuid, c.reach); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
	if got := log.Covering(499); got != 0xB {
		t.Errorf("covering 499: %x", got)
	}
	if got := log.Covering(500); got != 0xC {
		t.Errorf("covering 500: %x", got)
	}
	if p, ok := log.Previous(500); !ok || p != 0xB {
		t.Errorf("previous at 500: %x %v", p, ok)
	}
	if _, ok := log.Previous(501); ok {
		t.Error("501 lies on C alone")
	}
	holder := FailoverLog{{0xD, 320}, {0xB, 300}, {0xA, 0}}
	if got := holder.Common(log); got != 320 {
		t.Errorf("both know B, the holder left it at 320: %d", got)
	}
	if got := log.Common(log); got != Infinity {
		t.Errorf("same log: %d", got)
	}
	if got := log.Common(FailoverLog{{0xE, 0}}); got != 0 {
		t.Errorf("nothing in common: %d", got)
	}
}

func genVector(t *rapid.T, n int, label string) Vector {
	v := New(n)
	for i := range n {
		v.Set(i, Position{rapid.Uint64().Draw(t, label), rapid.Uint64().Draw(t, label)})
	}
	return v
}

func TestDeltaRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 70).Draw(t, "n")
		base := genVector(t, n, "base")
		next := base.Clone()
		for i := range n {
			switch rapid.IntRange(0, 3).Draw(t, "change") {
			case 0:
				next.Seqnos[i] = rapid.Uint64().Draw(t, "seqno")
			case 1:
				next.VBUUIDs[i] = rapid.Uint64().Draw(t, "vbuuid")
			}
		}
		enc, err := next.AppendDelta([]byte("x"), base)
		if err != nil {
			t.Fatal(err)
		}
		got, rest, err := ApplyDelta(append(enc[1:], "tail"...), base)
		if err != nil || string(rest) != "tail" || !got.Equal(next) {
			t.Fatalf("%v %q: %v, want %v", err, rest, got, next)
		}
		if next.Equal(base) != (next.Hash() == base.Hash()) {
			t.Fatalf("hash disagrees with equality: %v %v", next, base)
		}
		for cut := range len(enc) - 1 {
			if _, _, err := ApplyDelta(enc[1:1+cut], base); err == nil {
				t.Fatalf("cut at %d of %d passes", cut, len(enc)-1)
			}
		}
	})
}

func TestDeltaIsSmall(t *testing.T) {
	base := New(1024)
	for v := range 1024 {
		base.Set(v, Position{uint64(v) << 40, 1 << 30})
	}
	next := base.Clone()
	for v := 0; v < 1024; v += 100 {
		next.Seqnos[v] += 100
	}
	enc, err := next.AppendDelta(nil, base)
	if err != nil || len(enc) > 64 {
		t.Errorf("11 changes of 1024 take %d bytes (%v), want at most 64", len(enc), err)
	}
}

func FuzzDelta(f *testing.F) {
	seed, _ := vec(1, 2, 3, 4).AppendDelta(nil, New(2))
	f.Add(seed)
	f.Add([]byte{1, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, b []byte) {
		got, rest, err := ApplyDelta(b, New(2))
		if err != nil {
			return
		}
		again, err := got.AppendDelta(nil, New(2))
		if err != nil {
			t.Fatal(err)
		}
		back, _, err := ApplyDelta(again, New(2))
		if err != nil || !back.Equal(got) || len(rest) > len(b) {
			t.Fatalf("%v does not survive: %v %v", got, back, err)
		}
	})
}

func FuzzLog(f *testing.F) {
	f.Add(AppendLog(nil, FailoverLog{{1, 2}, {3, 0}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, _, err := DecodeLog(b)
		if err != nil {
			return
		}
		if back, _, err := DecodeLog(AppendLog(nil, l)); err != nil || !back.Equal(l) {
			t.Fatalf("%v does not survive: %v %v", l, back, err)
		}
	})
}

func BenchmarkVector1024(b *testing.B) {
	x, y := New(1024), New(1024)
	for v := range 1024 {
		x.Set(v, Position{uint64(v), uint64(v * 7)})
		y.Set(v, Position{uint64(v), uint64(v * 5)})
	}
	b.Run("min", func(b *testing.B) {
		for b.Loop() {
			_ = y.Min(x)
		}
	})
	b.Run("covers", func(b *testing.B) {
		for b.Loop() {
			_ = x.Covers(y)
		}
	})
	b.Run("hash", func(b *testing.B) {
		for b.Loop() {
			_ = x.Hash()
		}
	})
}

// TestWholeVector checks that a vector and the bytes after it are decoded as encoded, and that it is refused if it is
// truncated or has too many vbuckets.
func TestWholeVector(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 9).Draw(t, "vbuckets")
		v := Vector{}
		if n > 0 {
			v = New(n)
		}
		for vb := range n {
			v.Set(vb, Position{rapid.Uint64().Draw(t, "vbuuid"), rapid.Uint64().Draw(t, "seqno")})
		}
		enc := v.AppendVector(nil)
		got, rest, err := DecodeVector(append(slices.Clone(enc), "rest"...))
		if err != nil || string(rest) != "rest" || !got.Equal(v) {
			t.Fatalf("%v, %q, %v", got, rest, err)
		}
		for cut := range enc {
			if got, _, err := DecodeVector(enc[:cut]); !errors.Is(err, ErrCorrupt) {
				t.Fatalf("%d of %d bytes: %v, %v", cut, len(enc), got, err)
			}
		}
	})
	v, rest, err := DecodeVector(New(MaxVBuckets).AppendVector(nil))
	if err != nil || len(rest) > 0 || v.Len() != MaxVBuckets {
		t.Errorf("the longest: %d vbuckets, %v", v.Len(), err)
	}
	if _, _, err := DecodeVector(New(MaxVBuckets + 1).AppendVector(nil)); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a longer one: %v", err)
	}
}

// A failover log that is too long loses its oldest entries when it is encoded, so that it can be decoded: an entry of
// the Raft log that cannot be decoded stops every manager.
func TestLongLogsAreCut(t *testing.T) {
	var long FailoverLog
	for i := range 71 {
		long = append(long, LogEntry{VBUUID: uint64(100 - i), Seqno: uint64(200 - 2*i)})
	}
	back, rest, err := DecodeLog(AppendLog(nil, long))
	if err != nil || len(rest) > 0 || !back.Equal(long[:64]) {
		t.Errorf("%d entries, %d bytes left, %v", len(back), len(rest), err)
	}
}

// TestCommon is the example of the design: branch C began at 500, B covers 300 to 500, A 0 to 300. A state is valid
// if everything that it may reflect lies on KV's branch.
func TestCommon(t *testing.T) {
	const a, b, c, x = 0xA, 0xB, 0xC, 0x99
	kv := FailoverLog{{c, 500}, {b, 300}, {a, 0}}
	for _, tc := range []struct {
		name  string
		reach uint64
		log   FailoverLog
		ok    bool
	}{
		{"on A beyond its end", 350, FailoverLog{{a, 0}}, false},
		{"on A up to its end", 300, FailoverLog{{a, 0}}, true},
		{"on B, continues on C", 450, FailoverLog{{b, 300}, {a, 0}}, true},
		{"where C began", 500, FailoverLog{{b, 300}, {a, 0}}, true},
		{"on C", 9000, FailoverLog{{c, 500}, {b, 300}, {a, 0}}, true},
		{"on a branch that KV never had", 1, FailoverLog{{x, 0}}, false},
		{"a lost branch that left B at 400", 420, FailoverLog{{x, 400}, {b, 300}, {a, 0}}, false},
		{"the same, before it left", 390, FailoverLog{{x, 400}, {b, 300}, {a, 0}}, true},
	} {
		if got := tc.reach <= tc.log.Common(kv); got != tc.ok {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.ok)
		}
	}
}
