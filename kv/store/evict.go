package store

// Evict deletes the oldest document but one, as an engine does whose memory is full and whose bucket has no disk: a
// deletion that nobody asked for. A vbucket that is not active has no numbers to give. Nodes that play such an engine
// use it.
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
		_, _ = v.putLocked(&gone) // a log that cannot be written says so to the writers
		return
	}
}
