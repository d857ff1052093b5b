package snapshots

import (
	"slices"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/indexer/scan"
	"tidemark/wire"
)

// maxRefused bounds the timestamps that are remembered as refused for lack of room.
const maxRefused = 64

// KeepScan keeps snapshots of copies for a long scan, even if it does not read them here: for scan.KeepFor from now
// on, but at most until scan.MaxKeep after the first request. Scans at the same timestamp share the snapshots.
// EndPages releases them. Errors are *scan.Error: BUSY if too much is kept already, SNAPSHOT_TOO_OLD if none of the
// copies holds the timestamp any more.
func (s *Set) KeepScan(p scan.Pages, copies []index.CopyID, ref wire.StabilityRef) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	copies = slices.DeleteFunc(slices.Clone(copies), func(c index.CopyID) bool { return s.isPast(c, ref) })
	if len(copies) == 0 {
		return scan.Errorf(errcode.SnapshotTooOld, "timestamp %d is no longer held on this indexer", ref.Number)
	}
	now := s.now()
	a, _, err := s.long.keep(p, copies, ref, s.sizeOf(copies), now)
	i := slices.Index(s.refused, ref)
	if i >= 0 {
		s.refused = slices.Delete(s.refused, i, i+1)
	}
	if err != nil {
		s.refused = append(s.refused[max(0, len(s.refused)+1-maxRefused):], ref)
		return err
	}
	if a != nil {
		a.read(now)
	}
	return nil
}

// isPast reports whether a copy does not hold a timestamp and never will. The caller holds the lock.
func (s *Set) isPast(c index.CopyID, ref wire.StabilityRef) bool {
	list := s.copies[c]
	return len(list) > 0 && list[len(list)-1].Ref.Compare(ref.Ref) > 0 &&
		!slices.ContainsFunc(list, func(h Held) bool { return h.Ref == ref })
}

// whyNotKept returns why a timestamp that a scan still needed was released, "" if unknown.
func (s *Set) whyNotKept(ref wire.StabilityRef) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(s.refused, ref) {
		return ""
	}
	return ": its indexer had no room to keep it for a long scan"
}

// LongKept returns how many snapshots are kept for long scans, and their memory in bytes.
func (s *Set) LongKept() (snapshots int, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.long.expire(s.now())
	return len(s.long.held), s.long.bytes
}
