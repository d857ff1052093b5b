package consensus

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"
)

// Thresholds for the health of the disk.
const (
	// slowHeartbeats is the default of Config.SlowWrite, in heartbeats.
	slowHeartbeats = 2
	// slowRow is how many consecutive writes must be slow for the disk to count as slow, and for how many times
	// SlowWrite a single write may last before this node stops acting as leader.
	slowRow = 3
	// spaceInterval is how often the free space is measured and a faulty disk is probed.
	spaceInterval = time.Second
	// probeBytes is the size of the write that probes a faulty disk: that of a large log entry.
	probeBytes = 64 << 10
	// firstHandOn and maxHandOn bound the pauses between attempts to transfer leadership while the disk stays unhealthy:
	// the disk of the next leader may be no better.
	firstHandOn = 10 * time.Second
	maxHandOn   = 5 * time.Minute
)

// Beginnings of the faults with which a manager stores nothing.
const (
	DiskFails = "disk fails"
	DiskHangs = "disk hangs"
)

// probeKey is the key of the write that probes a disk.
var probeKey = []byte("tidemark-disk-probe")

// Disk describes the health of the storage under the Raft log.
type Disk struct {
	FreeBytes  uint64        `json:"free_bytes"` // 0, with TotalBytes, if the system does not report it
	TotalBytes uint64        `json:"total_bytes"`
	LastWrite  time.Duration `json:"last_write"` // duration of the newest write, or so far of a pending one that hangs
	// Faults lists the reasons why this node should not lead; it is empty if the disk is healthy.
	Faults []string `json:"faults,omitempty"`
}

// disk times every write to the store and records the outcome. It is safe for concurrent use.
type disk struct {
	cfg     *Config
	seconds prometheus.Histogram
	errors  prometheus.Counter

	mu       sync.Mutex
	underWay map[*time.Time]struct{} // start times of pending writes
	last     time.Duration           // duration of the newest write
	ended    time.Time               // end of the newest write
	slow     int                     // number of consecutive slow writes
	slowNow  bool                    // set until slowRow consecutive writes are quick
	quick    int
	failure  error // error of the newest write
	free     uint64
	total    uint64
	few      string // that too few files can be made; ""
}

func newDisk(cfg *Config) *disk {
	return &disk{cfg: cfg, underWay: map[*time.Time]struct{}{},
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "tidemark", Subsystem: "raft",
			Name: "log_write_seconds",
			Help: "Time of one write to the Raft log's store, with its sync.", Buckets: prometheus.ExponentialBuckets(0.00025, 2,
				16)}),
		errors: prometheus.NewCounter(prometheus.CounterOpts{Namespace: "tidemark", Subsystem: "raft",
			Name: "log_write_errors_total",
			Help: "Writes to the Raft log's store that failed."})}
}

// write runs a write and records its duration and outcome.
func (d *disk) write(do func() error) error {
	began := time.Now()
	d.mu.Lock()
	d.underWay[&began] = struct{}{}
	d.mu.Unlock()
	var err error
	if d.cfg.Failpoint != nil {
		err = d.cfg.Failpoint()
	}
	if err == nil {
		err = do()
	}
	took := time.Since(began)
	d.seconds.Observe(took.Seconds())
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.underWay, &began)
	d.last, d.ended = took, began.Add(took)
	if took >= d.cfg.SlowWrite {
		d.slow, d.quick = d.slow+1, 0
	} else {
		d.slow, d.quick = 0, d.quick+1
	}
	switch {
	case d.slow >= slowRow:
		d.slowNow = true
	case d.quick >= slowRow:
		d.slowNow = false
	}
	if d.failure = err; err != nil {
		d.errors.Inc()
		return fmt.Errorf("%s: %w", d.cfg.database(), err)
	}
	return nil
}

// brief runs a write that does not wait for the disk, and so is no measure of it. While it hangs all the same, the disk
// counts as hung.
func (d *disk) brief(do func() error) error {
	began := time.Now()
	d.mu.Lock()
	d.underWay[&began] = struct{}{}
	d.mu.Unlock()
	err := do()
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.underWay, &began)
	return err
}

// longest returns how long the oldest pending write has taken. The caller holds d.mu.
func (d *disk) longest() (longest time.Duration) {
	for began := range d.underWay {
		longest = max(longest, time.Since(*began))
	}
	return longest
}

// hangs reports whether a write has been pending for so long that this node must stop acting as leader: Raft's loop
// waits for the disk, while its heartbeats still go out and keep the others from electing a healthy leader.
func (d *disk) hangs() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.longest() >= slowRow*d.cfg.SlowWrite
}

// state returns the present health of the disk.
func (d *disk) state() Disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := Disk{FreeBytes: d.free, TotalBytes: d.total, LastWrite: d.last}
	if longest := d.longest(); longest >= slowRow*d.cfg.SlowWrite {
		s.LastWrite = longest
		s.Faults = append(s.Faults, fmt.Sprintf(DiskHangs+": a write to %s has been pending for %v", d.cfg.Dir,
			longest.Round(time.Millisecond)))
	} else if d.slowNow {
		s.Faults = append(s.Faults, fmt.Sprintf("disk slow: writes to %s take %v or more, the last took %v",
			d.cfg.database(), d.cfg.SlowWrite,
			d.last.Round(time.Millisecond)))
	}
	if d.failure != nil {
		s.Faults = append(s.Faults, fmt.Sprintf(DiskFails+": %s: %v", d.cfg.database(), d.failure))
	}
	if d.total > 0 && d.free < d.cfg.MinFree {
		s.Faults = append(s.Faults, fmt.Sprintf("disk low: %d bytes are free under %s, want at least %d (--min-free-bytes)",
			d.free, d.cfg.Dir, d.cfg.MinFree))
	}
	if d.few != "" && d.cfg.MinFree > 0 {
		s.Faults = append(s.Faults, "disk low: "+d.few)
	}
	return s
}

// measure measures the free space. If the system does not report it, total stays 0.
func (d *disk) measure() {
	s, err := d.cfg.space(d.cfg.Dir)
	if err != nil {
		d.cfg.Logger.Debug("free disk space is unknown", "dir", d.cfg.Dir, "error", err)
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.free, d.total, d.few = s.Free, s.Total, s.FewFiles(d.cfg.Dir)
}

// Disk returns the health of the storage under the Raft log.
func (st *storage) Disk() Disk { return st.disk.state() }

// watchSpace measures the free space, and probes a disk that failed or was slow to find out when it is healthy again.
func (st *storage) watchSpace(ctx context.Context) error {
	tick := time.NewTicker(spaceInterval)
	defer tick.Stop()
	for {
		st.disk.measure()
		st.disk.mu.Lock()
		try := (st.disk.failure != nil || st.disk.slowNow) && len(st.disk.underWay) == 0 &&
			time.Since(st.disk.ended) >= spaceInterval/2
		st.disk.mu.Unlock()
		if try {
			if err := st.store.Set(probeKey, make([]byte, probeBytes)); err == nil {
				_ = st.store.Set(probeKey, nil) // frees the space for the log; a failure is recorded
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// watchDisk transfers leadership while the disk is unhealthy, and logs changes of its health. While a write hangs,
// Raft cannot transfer leadership: then this node stops serving, and its transport stops acting as a leader's
// (addressed.AppendEntries).
func (t *terms) watchDisk(ctx context.Context) error {
	tick := time.NewTicker(t.cfg.Heartbeat / 2)
	defer tick.Stop()
	said, pause, next := "", time.Duration(0), time.Time{}
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		t.reigns.stall(t.storage.disk.hangs())
		faults := t.storage.disk.state().Faults
		if len(faults) == 0 {
			if said != "" {
				t.cfg.Logger.Info("disk works again")
			}
			said, pause, next = "", 0, time.Time{}
			continue
		}
		if kind := faultKinds(faults); kind != said {
			said = kind
			t.cfg.Logger.Error("disk of the Raft log fails; this node should not lead", "faults", faults)
		}
		if t.storage.disk.hangs() || t.raft.State() != raft.Leader || time.Now().Before(next) {
			continue
		}
		if pause == 0 {
			pause = firstHandOn
		}
		next, pause = time.Now().Add(pause), min(2*pause, maxHandOn)
		if err := t.TransferLeadership(ctx); err != nil && !errors.Is(err, ErrNotLeader) {
			t.cfg.Logger.Warn("leadership cannot be transferred away from a failing disk", "error", err, "next attempt in",
				time.Until(next).Round(time.Second))
		}
	}
}

// faultKinds returns the kinds of the faults without their figures, which change all the time.
func faultKinds(faults []string) (kinds string) {
	for _, f := range faults {
		for i, r := range f {
			if r == ':' {
				kinds += f[:i] + ","
				break
			}
		}
	}
	return kinds
}

// snapshotFiles returns metadata and time of the newest state snapshot, and the total size in bytes of all snapshots.
func (st *storage) snapshotFiles() (newest *raft.SnapshotMeta, at time.Time, bytes int64) {
	metas, err := st.snaps.List()
	if err != nil || len(metas) == 0 {
		return nil, time.Time{}, 0
	}
	for _, m := range metas {
		bytes += m.Size
	}
	if info, err := os.Stat(filepath.Join(st.cfg.Dir, "snapshots", metas[0].ID)); err == nil {
		at = info.ModTime()
	}
	return metas[0], at, bytes
}
