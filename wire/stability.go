package wire

import (
	"tidemark/timestamp"
)

// StabilityDelta encodes a stability timestamp as its difference from one that the receiver already has. With 1,024
// vbuckets a full timestamp takes tens of kilobytes, most of it failover logs, which rarely change.
type StabilityDelta struct {
	StabilityRef
	BaseNumber uint64      `json:"base_number"` // of the same generation and rollback id
	BaseHash   uint64      `json:"base_hash,string"`
	Delta      []byte      `json:"delta"` // of the vector: timestamp.Vector.AppendDelta
	Logs       []LogUpdate `json:"logs,omitempty"`
}

// LogUpdate is the failover log of one vbucket where it differs from the base's.
type LogUpdate struct {
	VBucket uint16                `json:"vbucket"`
	Log     timestamp.FailoverLog `json:"log"`
}

// Since returns s as a delta against base. ok is false if s must be sent in full.
func (s *BucketStability) Since(base *BucketStability) (d StabilityDelta, ok bool) {
	if s.Bucket != base.Bucket || s.Generation != base.Generation || s.RollbackID != base.RollbackID ||
		len(s.Logs) != len(base.Logs) {
		return d, false
	}
	delta, err := s.Vector.AppendDelta(nil, base.Vector)
	if err != nil {
		return d, false
	}
	d = StabilityDelta{StabilityRef: s.Named(), BaseNumber: base.Number, BaseHash: base.Hash, Delta: delta}
	if len(s.Logs) > 0 && &s.Logs[0] != &base.Logs[0] {
		for v, log := range s.Logs {
			if !log.Equal(base.Logs[v]) {
				d.Logs = append(d.Logs, LogUpdate{VBucket: uint16(v), Log: log})
			}
		}
	}
	return d, true
}

// apply returns the full timestamp. ok is false if base is not the one that d is based on.
func (d *StabilityDelta) apply(base *BucketStability) (s BucketStability, ok bool) {
	if d.Bucket != base.Bucket || d.Generation != base.Generation || d.RollbackID != base.RollbackID ||
		d.BaseNumber != base.Number || d.BaseHash != base.Hash {
		return s, false
	}
	v, rest, err := timestamp.ApplyDeltaShared(d.Delta, base.Vector)
	if err != nil || len(rest) > 0 || v.Hash() != d.Hash {
		return s, false
	}
	s = BucketStability{Bucket: d.Bucket, Stability: timestamp.Stability{Ref: d.Ref, Vector: v, Logs: base.Logs}}
	if len(d.Logs) > 0 {
		s.Logs = append([]timestamp.FailoverLog(nil), base.Logs...)
		for _, u := range d.Logs {
			if int(u.VBucket) >= len(s.Logs) {
				return s, false
			}
			s.Logs[u.VBucket] = u.Log
		}
	}
	return s, true
}

// StabilityBases holds the newest stability timestamp per bucket that a receiver has: the bases of deltas. A receiver
// keeps one for itself, and a sender one for each receiver. The caller must not modify the timestamps that methods
// return.
type StabilityBases map[string]BucketStability

// maxBases bounds the buckets in a StabilityBases, including deleted ones. At the limit all are discarded, so that
// the next timestamp of each bucket is sent in full once.
const maxBases = 1024

// Record sets the newest timestamp of a bucket.
func (t StabilityBases) Record(s *BucketStability) {
	if _, known := t[s.Bucket]; !known && len(t) >= maxBases {
		clear(t)
	}
	t[s.Bucket] = *s
}

// Assume records the timestamps that a receiver probably has, unless newer ones are recorded.
func (t StabilityBases) Assume(base []BucketStability) {
	for i := range base {
		if was, known := t[base[i].Bucket]; !known || was.Compare(base[i].Ref) < 0 {
			t.Record(&base[i])
		}
	}
}

// Encode returns req with every timestamp encoded as a delta if there is a base for it.
func (t StabilityBases) Encode(req *StabilityRequest) *StabilityRequest {
	enc := &StabilityRequest{Fence: req.Fence}
	for i := range req.Stabilities {
		s := &req.Stabilities[i]
		if was, known := t[s.Bucket]; known {
			if d, ok := s.Since(&was); ok {
				enc.Deltas = append(enc.Deltas, d)
				continue
			}
		}
		enc.Stabilities = append(enc.Stabilities, *s)
	}
	return enc
}

// Decode returns the timestamps in a request, and records them. missing lists the buckets for which the base of a
// delta was missing: the sender has to send those in full.
func (t StabilityBases) Decode(req *StabilityRequest) (all []BucketStability, missing []string) {
	for i := range req.Stabilities {
		t.Record(&req.Stabilities[i])
		all = append(all, req.Stabilities[i])
	}
	for i := range req.Deltas {
		d := &req.Deltas[i]
		was := t[d.Bucket]
		s, ok := d.apply(&was)
		if !ok {
			missing = append(missing, d.Bucket)
			continue
		}
		t.Record(&s)
		all = append(all, s)
	}
	return all, missing
}
