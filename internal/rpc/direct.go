package rpc

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// Limits of direct connections.
const (
	directIdle    = 50 * time.Second // an unused connection is kept: less than servers keep it
	directBuffer  = 8 << 10          // of each connection and direction
	directDial    = 5 * time.Second  // for a connection, its TLS included
	directRetries = 4                // connections that the server has closed meanwhile, one after another
)

// Direct is an http.RoundTripper for short calls that may be repeated: reads. The goroutine that calls writes the request and
// reads the answer itself; net/http's own hands each over to two goroutines of the connection, which costs more than the rest
// of a small call. A connection that the server has closed while it was idle is replaced without a word, so a request may
// arrive twice. It speaks HTTP/1.1, follows no proxy, and answers have to be closed.
type Direct struct {
	tls    *tls.Config
	dialer net.Dialer
	most   int // idle connections to one address

	mu   sync.Mutex
	idle map[string][]*directConn // by scheme and address, the one used last at the end
}

// NewDirect keeps at most perHost idle connections to one address; conf is for https addresses, nil for none of its own.
func NewDirect(perHost int, conf *tls.Config) *Direct {
	return &Direct{tls: conf, dialer: net.Dialer{Timeout: 2 * time.Second, KeepAlive: 5 * time.Second}, most: perHost, idle: map[string][]*directConn{}}
}

// NewDirectClient gives a client of NewDirect, for reads.
func NewDirectClient(perHost int, conf *tls.Config) *Client {
	return &Client{http: &http.Client{Transport: NewDirect(perHost, conf)}}
}

type directConn struct {
	net.Conn
	r     *bufio.Reader
	w     *bufio.Writer
	place string
	since time.Time // of being idle
}

// RoundTrip implements http.RoundTripper.
func (d *Direct) RoundTrip(req *http.Request) (*http.Response, error) {
	place := req.URL.Scheme + "://" + req.URL.Host
	for attempt := 0; ; attempt++ {
		c, used, err := d.take(req, place)
		if err != nil {
			return nil, err
		}
		resp, err := d.exchange(c, req)
		if err == nil {
			return resp, nil
		}
		_ = c.Close()
		if req.Context().Err() != nil {
			return nil, req.Context().Err()
		}
		if !used || attempt == directRetries {
			return nil, fmt.Errorf("%s %s: %w", req.Method, req.URL.Redacted(), err)
		}
		if req.Body, err = bodyAgain(req); err != nil {
			return nil, err
		}
	}
}

// bodyAgain gives a request's body from its beginning.
func bodyAgain(req *http.Request) (io.ReadCloser, error) {
	if req.Body == nil || req.Body == http.NoBody {
		return req.Body, nil
	}
	if req.GetBody == nil {
		return nil, errors.New("a body that cannot be sent again")
	}
	return req.GetBody()
}

// take gives an idle connection, or a new one.
func (d *Direct) take(req *http.Request, place string) (c *directConn, used bool, err error) {
	d.mu.Lock()
	for list := d.idle[place]; len(list) > 0; {
		last := list[len(list)-1]
		list = list[:len(list)-1]
		if d.idle[place] = list; time.Since(last.since) < directIdle {
			d.mu.Unlock()
			return last, true, nil
		}
		_ = last.Close()
	}
	d.mu.Unlock()
	ctx, cancel := context.WithTimeout(req.Context(), directDial)
	defer cancel()
	address := req.URL.Host
	if req.URL.Port() == "" {
		port := "80"
		if req.URL.Scheme == "https" {
			port = "443"
		}
		address = net.JoinHostPort(req.URL.Hostname(), port)
	}
	raw, err := d.dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, false, err
	}
	if req.URL.Scheme == "https" {
		conf := &tls.Config{MinVersion: tls.VersionTLS12}
		if d.tls != nil {
			conf = d.tls.Clone()
		}
		if conf.ServerName == "" {
			conf.ServerName = req.URL.Hostname()
		}
		secure := tls.Client(raw, conf)
		if err := secure.HandshakeContext(ctx); err != nil {
			return nil, false, errors.Join(err, raw.Close())
		}
		raw = secure
	}
	return &directConn{Conn: raw, r: bufio.NewReaderSize(raw, directBuffer), w: bufio.NewWriterSize(raw, directBuffer), place: place}, false, nil
}

// exchange sends a request and reads the head of its answer. The end of the context breaks the connection, until the answer
// is closed.
func (d *Direct) exchange(c *directConn, req *http.Request) (*http.Response, error) {
	release := context.AfterFunc(req.Context(), func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	err := req.Write(c.w)
	if err == nil {
		err = c.w.Flush()
	}
	var resp *http.Response
	if err == nil {
		resp, err = http.ReadResponse(c.r, req)
	}
	if err != nil {
		release()
		return nil, err
	}
	resp.Body = &directBody{ReadCloser: resp.Body, d: d, c: c, ctx: req.Context(), release: release, keep: !resp.Close && !req.Close}
	return resp, nil
}

// directBody gives its connection back as soon as it has been read to its end.
type directBody struct {
	io.ReadCloser
	d       *Direct
	c       *directConn // nil: given back or closed
	ctx     context.Context
	release func() bool
	keep    bool
	ended   bool
}

// Read implements io.Reader.
func (b *directBody) Read(p []byte) (int, error) {
	switch {
	case b.ended:
		return 0, io.EOF
	case b.c == nil:
		return 0, http.ErrBodyReadAfterClose
	}
	n, err := b.ReadCloser.Read(p)
	switch {
	case errors.Is(err, io.EOF):
		b.ended = true
		if c := b.c; b.keep && c.r.Buffered() == 0 && b.release() {
			b.c = nil
			b.d.put(c)
		}
	case err != nil && b.ctx.Err() != nil:
		err = b.ctx.Err()
	}
	return n, err
}

// Close implements io.Closer.
func (b *directBody) Close() error {
	c := b.c
	if c == nil {
		return nil
	}
	b.c = nil
	b.release()
	return c.Close()
}

// put keeps a connection for the next request.
func (d *Direct) put(c *directConn) {
	c.since = time.Now()
	d.mu.Lock()
	list := d.idle[c.place]
	full := len(list) >= d.most
	if !full {
		d.idle[c.place] = append(list, c)
	}
	d.mu.Unlock()
	if full {
		_ = c.Close()
	}
}

// CloseIdleConnections closes what no request uses.
func (d *Direct) CloseIdleConnections() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, list := range d.idle {
		for _, c := range list {
			_ = c.Close()
		}
	}
	clear(d.idle)
}
