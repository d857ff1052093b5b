package snapshots

import (
	"slices"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/indexer/scan"
	"tidemark/wire"
)

// maxRefused bounds the timestamps of which it is remembered that there was no room to keep them.
const maxRefused = 64

// KeepScan lets snapshots of copies stay for a scan that takes long, be it that others read them: for scan.KeepFor from
// now on, or until scan.MaxKeep has passed since it was asked first. Scans of one timestamp share them; EndPages ends
// it. Errors are *scan.Error: BUSY where so much is kept already, SNAPSHOT_TOO_OLD where none of the copies holds the
// timestamp any more.
func (s *Set) KeepScan(p scan.Pages, copies []index.CopyID, ref wire.StabilityRef) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	copies = slices.DeleteFunc(slices.Clone(copies), func(c index.CopyID) bool { return s.isPast(c, ref) })
	if len(copies) == 0 {
		return scan.Errorf(errcode.SnapshotTooOld, "timestamp %d is not held here any more", ref.Number)
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

// isPast reports whether a copy does not hold a timestamp, and will not. The lock is held.
func (s *Set) isPast(c index.CopyID, ref wire.StabilityRef) bool {
	list := s.copies[c]
	return len(list) > 0 && list[len(list)-1].Ref.Compare(ref.Ref) > 0 &&
		!slices.ContainsFunc(list, func(h Held) bool { return h.Ref == ref })
}

// whyNotKept says what is known of why a timestamp was let go that a scan still wanted; "" for nothing.
func (s *Set) whyNotKept(ref wire.StabilityRef) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(s.refused, ref) {
		return ""
	}
	return ": there was no room on its indexer to keep it for a scan that takes long"
}

// LongKept is how many snapshots are kept for scans that take long, and how much memory they take, in bytes.
func (s *Set) LongKept() (snapshots int, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.long.expire(s.now())
	return len(s.long.held), s.long.bytes
}
