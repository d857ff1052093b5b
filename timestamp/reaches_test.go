package timestamp

import "testing"

// A vbucket that KV has made anew is at 0 on a branch of its own: what was there before does not reach that.
func TestReaches(t *testing.T) {
	one := func(vbuuid, seqno uint64) Vector {
		v := New(1)
		v.Set(0, Position{VBUUID: vbuuid, Seqno: seqno})
		return v
	}
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
