package timestamp

import "testing"

// A vbucket that KV has made anew is at 0 on a branch of its own: what was there before does not reach that.
func TestReaches(t *testing.T) {
	for _, c := range []struct {
		name     string
		at, need Vector
		want     bool
	}{
		{"the same", one(7, 5), one(7, 5), true},
		{"beyond it", one(7, 6), one(7, 5), true},
		{"below it", one(7, 4), one(7, 5), false},
		{"another branch", one(7, 5), one(8, 5), false},
		{"nothing was ever there", one(0, 0), one(0, 0), true},
		{"nothing, on the first branch", one(0, 0), one(7, 0), true},
		{"nothing, on a newer branch", one(7, 0), one(8, 0), true},
		{"something where KV has nothing on a newer branch", one(7, 5), one(8, 0), false},
		{"something, of before the branch was known", one(7, 5), one(0, 0), false},
		{"written since the question, which found nothing", one(7, 5), one(7, 0), true},
		{"another number of vbuckets", New(2), one(7, 0), false},
	} {
		if got := c.at.Reaches(c.need); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// TestMeets: as Reaches, where need names a branch; else what is there counts on whichever branch it is.
func TestMeets(t *testing.T) {
	for _, c := range []struct {
		name     string
		at, need Vector
		want     bool
	}{
		{"the same", one(7, 5), one(7, 5), true},
		{"beyond it", one(7, 6), one(7, 5), true},
		{"below it", one(7, 4), one(7, 5), false},
		{"another branch", one(7, 5), one(8, 5), false},
		{"any branch", one(7, 5), one(0, 5), true},
		{"below it, on any branch", one(7, 4), one(0, 5), false},
		{"nothing is wanted", one(7, 5), one(0, 0), true},
		{"nothing, on a newer branch", one(7, 0), one(8, 0), true},
		{"something where KV has nothing on a newer branch", one(7, 5), one(8, 0), false},
		{"another number of vbuckets", New(2), one(7, 0), false},
	} {
		if got := c.at.Meets(c.need); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// TestBoth: whatever meets what is made of two needs meets each of them, and nothing is asked for beyond them.
func TestBoth(t *testing.T) {
	var all []Vector
	for branch := range uint64(3) {
		for seqno := range uint64(3) {
			all = append(all, one(branch, seqno))
		}
	}
	for _, a := range all {
		for _, b := range all {
			before := []Vector{a.Clone(), b.Clone()}
			both, ok := a.Both(b)
			if differ := a.VBUUIDs[0] != b.VBUUIDs[0] && a.VBUUIDs[0] > 0 && b.VBUUIDs[0] > 0; ok == differ {
				t.Errorf("%v and %v: %v", a, b, ok)
			}
			if !a.Equal(before[0]) || !b.Equal(before[1]) {
				t.Fatalf("%v and %v have become %v and %v", before[0], before[1], a, b)
			}
			if !ok {
				continue
			}
			if s := both.Seqnos[0]; s != max(a.Seqnos[0], b.Seqnos[0]) {
				t.Errorf("%v and %v: %v", a, b, both)
			}
			for _, at := range all {
				if at.Meets(both) && (!at.Meets(a) || !at.Meets(b)) {
					t.Errorf("%v meets %v, and not both of %v and %v", at, both, a, b)
				}
			}
		}
	}
	if _, ok := New(1).Both(New(2)); ok {
		t.Error("vectors of different lengths")
	}
}

// one is a vector of one vbucket.
func one(vbuuid, seqno uint64) Vector {
	v := New(1)
	v.Set(0, Position{VBUUID: vbuuid, Seqno: seqno})
	return v
}
