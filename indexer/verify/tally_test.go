package verify

import (
	"errors"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"tidemark/index"
	"tidemark/manager/api/v1"
	"tidemark/partition"
	"tidemark/wire"
)

// tallied returns a verification of one copy that lists at most that many differences, and the list.
func tallied(most int, room int64) (v *verification, c *verifiedCopy, listed *[]string) {
	listed = new([]string)
	v = &verification{Verifier: &Verifier{room: room, metrics: newMetrics(prometheus.NewRegistry())}, most: most,
		emit: func(l *v1.VerifyLine) error { *listed = append(*listed, l.Difference.ID); return nil }}
	c = &verifiedCopy{place: partition.Copy{ID: 10}, extra: map[string][][]byte{}}
	return v, c, listed
}

// TestTally checks that findings of a group of vbuckets count when the group is complete, and are listed as far as
// the list has room. If memory has no room for them, fewer documents are compared at a time.
func TestTally(t *testing.T) {
	ids := []string{"a", "b", "c"}
	for _, c := range []struct {
		name   string
		before int // differences that are already listed
		most   int
		room   int64
		listed []string
		large  bool
	}{
		{"all", 0, 10, 1 << 20, ids, false},
		{"a full list", 0, 2, 1 << 20, ids[:2], false},
		{"a list that others have filled", 1, 2, 1 << 20, ids[:1], false},
		{"no list", 2, 2, 1 << 20, nil, false},
		{"no list, and no memory for what is found", 2, 2, 1, nil, true},
		{"no room for more than one", 0, 10, 1, nil, true},
	} {
		v, one, listed := tallied(c.most, c.room)
		for range c.before {
			if err := v.differ(one, v1.Difference{Kind: wire.ExtraRow, ID: "before"}, nil, nil); err != nil {
				t.Fatal(err)
			}
		}
		*listed = nil
		v.tally = newTally()
		var err error
		for _, id := range ids {
			v.tally.documents[one]++
			err = errors.Join(err, v.differ(one, v1.Difference{Kind: wire.MissingRow, ID: id}, nil, nil))
		}
		if v.sum.Differences != uint64(c.before) || len(*listed) > 0 || v.sum.Documents > 0 {
			t.Errorf("%s: %+v is counted, %q listed before they are through", c.name, v.sum, *listed)
		}
		if errors.Is(err, errVerifyLarge) != c.large {
			t.Errorf("%s: %v", c.name, err)
		}
		if c.large {
			continue
		}
		if err := v.through(v.tally); err != nil || !slices.Equal(*listed, c.listed) || v.sum.Documents != 3 ||
			v.sum.Differences != uint64(c.before+3) || one.sum.Differences != v.sum.Differences {
			t.Errorf("%s: %+v, listed %q, %v", c.name, v.sum, *listed, err)
		}
	}
}

// TestTallyIsUndone checks that rows without an entry are compared once with their document, and again if the group
// is started again.
func TestTallyIsUndone(t *testing.T) {
	_, c, _ := tallied(1, 1)
	c.extra["d"] = [][]byte{{1}}
	for range 2 {
		one := newTally()
		if n, again := len(one.takeExtra(c, "d")), len(one.takeExtra(c, "d")); n != 1 || again != 0 || len(c.extra) != 0 {
			t.Errorf("%d rows, %d again; %d left", n, again, len(c.extra))
		}
		one.undo()
	}
	if len(c.extra["d"]) != 1 {
		t.Errorf("%v is left", c.extra)
	}
}

// TestFindingsAreMerged checks that an auditor's findings of one group of vbuckets are added to the others, including
// for which copies more was found than is remembered.
func TestFindingsAreMerged(t *testing.T) {
	var all, first, second findings
	first.add(finding{copy: 10})
	second.add(finding{copy: 11})
	second.cut = map[index.CopyID]bool{12: true}
	for _, one := range []*findings{&first, &second} {
		all.merge(one)
	}
	for range auditFound {
		all.add(finding{copy: 13})
	}
	if len(all.all) != auditFound || all.all[1].copy != 11 || !all.cut[12] || !all.cut[13] || all.cut[11] {
		t.Errorf("%d, %v", len(all.all), all.cut)
	}
}
