package server

import "errors"

// errGone ends a connection whose bucket was removed, as engines end it.
var errGone = errors.New("the bucket was dropped")

// Add makes a bucket known to clients from now on.
func (s *Server) Add(name string, b *Bucket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.buckets == nil {
		s.buckets = map[string]*Bucket{}
	}
	s.buckets[name] = b
}

// Remove makes a bucket unknown: nobody can select it any more, and a request on it ends its connection. Evict ends the
// others.
func (s *Server) Remove(name string, b *Bucket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b.gone.Store(true)
	delete(s.lagging, b)
	if s.buckets[name] == b {
		delete(s.buckets, name)
	}
}

// Evict closes the connections of a bucket that was removed, side by side, and returns when nobody uses it any more.
func (s *Server) Evict(b *Bucket) {
	s.closeAll(&b.conns)
	b.users.Wait()
}

func (s *Server) bucket(name string) *Bucket {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buckets[name]
}

// only is the bucket when there is one only, and its name.
func (s *Server) only() (string, *Bucket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.buckets) == 1 {
		for name, b := range s.buckets {
			return name, b
		}
	}
	return "", nil
}

// enter makes the bucket that of the connection; false when it was removed meanwhile.
func (c *conn) enter(name string, b *Bucket) bool {
	c.srv.mu.Lock()
	defer c.srv.mu.Unlock()
	if b.gone.Load() {
		return false
	}
	c.leave()
	if b.conns == nil {
		b.conns = map[*conn]struct{}{}
	}
	b.conns[c] = struct{}{}
	b.users.Add(1)
	c.bucket, c.bucketName = b, name
	return true
}

// leave takes the connection off its bucket. The caller holds the server's mu, and does not use the bucket any more.
func (c *conn) leave() {
	if c.bucket == nil {
		return
	}
	if _, ok := c.bucket.conns[c]; ok {
		delete(c.bucket.conns, c)
		c.bucket.users.Done()
	}
}
