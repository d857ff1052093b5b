package indexer

import (
	"strings"
	"testing"
	"time"

	"tidemark/indexer/storage"
	"tidemark/stability"
)

// TestReplicaLag checks how many checkpoints are kept: so many that the oldest is from before the replicas' lag, at
// least as many as configured, and at most the limit.
func TestReplicaLag(t *testing.T) {
	for _, c := range []struct {
		every, lag time.Duration
		least      int
		keep       int
		says       string
	}{
		{lag: DefaultReplicaLag, keep: storage.DefaultKeepCheckpoints}, // a minute at 30 s: from 0, 30 and 60 s ago
		{lag: DefaultReplicaLag, every: 10 * time.Second, keep: 7},
		{lag: 10 * time.Minute, keep: 21},
		{lag: 61 * time.Second, keep: 4},
		{least: 1, keep: 1},
		{keep: storage.DefaultKeepCheckpoints},
		{lag: time.Minute, least: 12, keep: 12},
		{lag: 99 * time.Second, every: time.Second, keep: 100},
		{lag: 100 * time.Second, every: time.Second, says: "raise --checkpoint-every to 2s"},
		{least: 101, says: "at most 100"},
	} {
		conf, err := Config{Dir: "d", Managers: []string{"m"}, Checkpoint: c.every, ReplicaLag: c.lag,
			KeepCheckpoints: c.least}.withDefaults()
		if c.says != "" {
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%+v: %v", c, err)
			}
			continue
		}
		if err != nil || conf.KeepCheckpoints != c.keep {
			t.Errorf("%+v: %d, %v", c, conf.KeepCheckpoints, err)
			continue
		}
		if span := conf.Checkpoint * time.Duration(conf.KeepCheckpoints-1); span < conf.ReplicaLag {
			t.Errorf("%+v: %d checkpoints span %v", c, conf.KeepCheckpoints, span)
		}
	}
	if _, err := (Config{Dir: "d", Managers: []string{"m"}, CatchupRate: 10}).withDefaults(); err == nil ||
		!strings.Contains(err.Error(), "at least 1000") {
		t.Errorf("a rate below the least: %v", err)
	}
}

// TestMoreSnapshotsThanPromotionsOutstanding checks that the fastest indexer keeps the snapshot of the slowest one's
// timestamp, even if the slowest is behind by the maximum number of outstanding promotions and a new snapshot is
// being made.
func TestMoreSnapshotsThanPromotionsOutstanding(t *testing.T) {
	if most := stability.DefaultConfig().MaxOutstanding; DefaultKeepSnapshots < most+2 {
		t.Errorf("%d snapshots are kept beside %d promotions outstanding", DefaultKeepSnapshots, most)
	}
}
