package doctor

import (
	"context"
	"crypto/rand"
	"errors"

	"tidemark/kv/kvclient"
	"tidemark/kv/mcbp"
	"tidemark/timestamp"
)

// examineDCP opens a DCP connection as a projector does, and requests one stream that ends at its start.
func (o Options) examineDCP(ctx context.Context, f *facts, opt kvclient.Options) {
	f.dcp.tried = true
	one, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	s, err := kvclient.Handshake(one, f.addr, opt)
	if err != nil {
		f.dcp.openErr = err
		return
	}
	defer s.Close()
	c := dcpConn{o: o, f: f, session: s}
	if f.dcp.openErr = c.open(ctx); f.dcp.openErr != nil {
		return
	}
	for _, k := range wantedControls() {
		_, k.err = c.do(ctx, mcbp.Frame{Header: mcbp.Request(mcbp.OpDCPControl, 0, 0), Key: []byte(k.key),
			Value: []byte(k.value)})
		if f.dcp.controls = append(f.dcp.controls, k); f.err != nil {
			return
		}
	}
	if len(f.seqnos) > 0 {
		c.stream(ctx, f.seqnos[0].VBucket, f.seqnos[0].Seqno)
	}
}

// dcpConn is a connection for one request at a time.
type dcpConn struct {
	o       Options
	f       *facts
	session *kvclient.Session
}

// do sends a request. After an error that is not an answer, the session is unusable.
func (c *dcpConn) do(ctx context.Context, req mcbp.Frame) (a mcbp.Frame, err error) {
	err = again(ctx, func() (err error) {
		one, cancel := context.WithTimeout(ctx, c.o.Timeout)
		defer cancel()
		if a, err = c.session.RoundTrip(one, req); err == nil {
			err = kvclient.NewStatusError(a)
		}
		return err
	})
	if err != nil && !answered(err) {
		c.f.err, c.f.silent = err, req.Op.String()
	}
	return a, err
}

func (c *dcpConn) open(ctx context.Context) error {
	flags := mcbp.OpenProducer
	if c.session.Granted(mcbp.FeatureXattr) {
		flags |= mcbp.OpenXattrs
	}
	_, err := c.do(ctx, mcbp.Frame{Header: mcbp.Request(mcbp.OpDCPOpen, 0, 0),
		Key: []byte("tidemark:doctor:" + rand.Text()), Extras: mcbp.Open{Flags: flags}.AppendExtras(nil)})
	return err
}

// stream reads a failover log, and requests an empty stream.
func (c *dcpConn) stream(ctx context.Context, vb uint16, high uint64) {
	d := &c.f.dcp
	d.streamed = true
	a, err := c.do(ctx, mcbp.Frame{Header: mcbp.Request(mcbp.OpDCPFailoverLog, vb, 0)})
	var log timestamp.FailoverLog
	if err == nil {
		log, err = mcbp.DecodeFailoverLog(a.Value)
	}
	if d.logErr = err; err != nil {
		return
	}
	req := mcbp.StreamRequest{Flags: mcbp.StreamActiveOnly, Start: high, End: high, SnapStart: high, SnapEnd: high}
	if high > 0 {
		req.VBUUID = log[0].VBUUID
	}
	_, d.streamErr = c.do(ctx, mcbp.Frame{Header: mcbp.Request(mcbp.OpDCPStreamReq, vb, 0),
		Extras: req.AppendExtras(nil)})
	var se *kvclient.StatusError
	if errors.As(d.streamErr, &se) && (se.Status == mcbp.StatusRollback || se.Status == mcbp.StatusNotMyVBucket) {
		d.streamErr = nil // the vbucket moved meanwhile, or lost mutations: streaming may work all the same
	}
}

// wantedControls returns the controls that the native feed sends, with the noop intervals that older engines accept.
// The longest interval is the last, so that no noop arrives while this connection lasts.
func wantedControls() []control {
	return []control{{key: mcbp.ControlNoopInterval, value: "5"}, {key: mcbp.ControlNoopInterval, value: "20"},
		{key: mcbp.ControlNoopInterval, value: "120"}, {key: mcbp.ControlBufferSize, value: "10485760"},
		{key: mcbp.ControlEndOnClose, value: "true"}, {key: mcbp.ControlEnableNoop, value: "true"}}
}
