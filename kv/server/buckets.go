package server

import "errors"

// errGone ends a connection whose bucket was removed, as in real engines.
var errGone = errors.New("the bucket was dropped")

// Add makes a bucket available to clients.
func (s *Server) Add(name string, b *Bucket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.buckets == nil {
		s.buckets = map[string]*Bucket{}
	}
	s.buckets[name] = b
}

// Remove makes a bucket unavailable: it can no longer be selected, and a request on it ends the connection. Evict
// ends the other connections.
func (s *Server) Remove(name string, b *Bucket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b.gone.Store(true)
	delete(s.lagging, b)
	if s.buckets[name] == b {
		delete(s.buckets, name)
	}
}

// Evict closes the connections of a removed bucket concurrently, and returns when no goroutine uses it any more.
func (s *Server) Evict(b *Bucket) {
	s.closeAll(&b.conns)
	b.users.Wait()
}

func (s *Server) bucket(name string) *Bucket {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buckets[name]
}

// only returns the bucket and its name if there is exactly one.
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

// enter selects a bucket for the connection; it returns false if the bucket was removed meanwhile.
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

// leave removes the connection from its bucket. The caller holds the server's mu and no longer uses the bucket.
func (c *conn) leave() {
	if c.bucket == nil {
		return
	}
	if _, ok := c.bucket.conns[c]; ok {
		delete(c.bucket.conns, c)
		c.bucket.users.Done()
	}
}
