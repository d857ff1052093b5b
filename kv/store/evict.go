package store

// Evict deletes the oldest document except but, as an engine does whose memory is full and whose bucket has no disk:
// no client has requested the deletion. In a vbucket that is not active it does nothing. It serves to simulate such
// an engine.
func (v *VBucket) Evict(but *Doc) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.state != Active {
		return
	}
	for _, d := range v.list {
		if d.next != 0 || d.Deleted || d == but || d.Collection == SystemCollection || v.docs[d.id()] != d {
			continue
		}
		gone := tombstone(d, uint32(v.bucket.now().Unix()))
		_, _ = v.putLocked(&gone) // writers see the error of a log that cannot be written
		return
	}
}
