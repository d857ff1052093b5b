package timestamp

import "testing"

// A vbucket that KV has re-created is at 0 on a branch of its own, which is not reached by its previous contents. A
// need without a branch is met on any branch.
func TestReachesAndMeets(t *testing.T) {
	for _, c := range []struct {
		name           string
		at, need       Vector
		reaches, meets bool
	}{
		{"the same", one(7, 5), one(7, 5), true, true},
		{"beyond it", one(7, 6), one(7, 5), true, true},
		{"below it", one(7, 4), one(7, 5), false, false},
		{"another branch", one(7, 5), one(8, 5), false, false},
		{"any branch", one(7, 5), one(0, 5), false, true},
		{"below it, on any branch", one(7, 4), one(0, 5), false, false},
		{"nothing was ever there", one(0, 0), one(0, 0), true, true},
		{"nothing, on the first branch", one(0, 0), one(7, 0), true, true},
		{"nothing, on a newer branch", one(7, 0), one(8, 0), true, true},
		{"something where KV has nothing on a newer branch", one(7, 5), one(8, 0), false, false},
		{"something, of before the branch was known", one(7, 5), one(0, 0), false, true},
		{"written since the question, which found nothing", one(7, 5), one(7, 0), true, true},
		{"another number of vbuckets", New(2), one(7, 0), false, false},
	} {
		if reaches, meets := c.at.Reaches(c.need), c.at.Meets(c.need); reaches != c.reaches || meets != c.meets {
			t.Errorf("%s: %v and %v, want %v and %v", c.name, reaches, meets, c.reaches, c.meets)
		}
	}
}

// TestBoth checks that a vector that meets the result meets both needs, and that the result is minimal.
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

// one returns a vector of one vbucket.
func one(vbuuid, seqno uint64) Vector {
	v := New(1)
	v.Set(0, Position{VBUUID: vbuuid, Seqno: seqno})
	return v
}
