package scanserver

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/indexer/core"
	"tidemark/indexer/scan"
	"tidemark/wire"
)

// scanBook counts scans by index.
type scanBook struct {
	mu      sync.Mutex
	byIndex map[index.ID]*wire.ScanStats
}

// count counts a scan or count of a defined index.
func (b *scanBook) count(defs *wire.Definitions, id index.ID, took time.Duration, ended time.Time, rows int64,
	err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.byIndex[id]
	if s == nil {
		if !core.Defines(defs, id) {
			return
		}
		b.prune(defs)
		if b.byIndex == nil {
			b.byIndex = map[index.ID]*wire.ScanStats{}
		}
		s = &wire.ScanStats{Index: id}
		b.byIndex[id] = s
	}
	s.NumRequests++
	s.NumRowsReturned += uint64(max(rows, 0))
	s.TotalScanDuration += uint64(max(took, 0))
	s.LastKnownScanTime = ended.UnixNano()
	if !failed(err) {
		return
	}
	e := scan.AsError(err)
	s.NumScanErrors++
	s.LastScanError = e.Error()
	if e.Code == errcode.Timeout {
		s.NumScanTimeouts++
	}
}

// failed reports whether the outcome of a scan is a failure. A scan that was cancelled, by its client or by a user,
// is not.
func failed(err error) bool {
	if err == nil {
		return false
	}
	code := scan.CodeOf(err)
	return code != errcode.Cancelled && code != errcode.ScanCancelled
}

// prune drops indexes that are no longer defined.
func (b *scanBook) prune(d *wire.Definitions) {
	for id := range b.byIndex {
		if !core.Defines(d, id) {
			delete(b.byIndex, id)
		}
	}
}

func (b *scanBook) list(d *wire.Definitions) []wire.ScanStats {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.prune(d)
	all := make([]wire.ScanStats, 0, len(b.byIndex))
	for _, s := range b.byIndex {
		all = append(all, *s)
	}
	slices.SortFunc(all, func(a, b wire.ScanStats) int { return cmp.Compare(a.Index, b.Index) })
	return all
}
