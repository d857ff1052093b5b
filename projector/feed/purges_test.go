package feed_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"tidemark/projector/feed"
)

// Purge seqnos are read from cheap statistics, for named vbuckets one by one; a vbucket that has moved does not
// affect the others.
func TestPurgeSeqnosAreReadCheaply(t *testing.T) {
	var mu sync.Mutex
	var asked []string
	refused := errors.New("refused")
	ask := func(group string) (map[uint16]feed.VBucketDetails, error) {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, group)
		switch group {
		case "vbucket-seqno 7":
			return nil, fmt.Errorf("it has left: %w", feed.ErrNotMyVBucket)
		case "vbucket-seqno 8":
			return nil, refused
		case "vbucket-seqno 1":
			return map[uint16]feed.VBucketDetails{1: {}}, nil
		}
		return map[uint16]feed.VBucketDetails{3: {PurgeSeqno: 30, HasPurge: true}, 4: {}}, nil
	}
	for _, x := range []struct {
		vbuckets []uint16
		asks     string
		want     map[uint16]uint64
		err      error
	}{
		{nil, "vbucket-seqno", map[uint16]uint64{3: 30}, nil},
		{[]uint16{3}, "vbucket-seqno 3", map[uint16]uint64{3: 30}, nil},
		{[]uint16{1, 3, 7}, "vbucket-seqno 1,vbucket-seqno 3,vbucket-seqno 7", map[uint16]uint64{3: 30}, nil},
		{[]uint16{8}, "vbucket-seqno 8", nil, refused},
	} {
		asked = nil
		purges, err := feed.Purges(x.vbuckets, ask)
		slices.Sort(asked)
		if got := strings.Join(asked, ","); got != x.asks || !maps.Equal(purges, x.want) || !errors.Is(err, x.err) {
			t.Errorf("%d vbuckets: queried %s, got %v, %v; want %s, %v, %v", len(x.vbuckets), got, purges, err, x.asks, x.want,
				x.err)
		}
	}
}
