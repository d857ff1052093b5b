package consensus

import (
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// A connection between managers begins with a handshake: magic, version, the caller's cluster id (empty if it has
// none), the server id that the caller wants to reach and the caller's own, each with a length byte, and the caller's
// epoch in 8 bytes. The callee answers with two texts, each with a length byte: the reason for a refusal, after which
// it closes, or nothing; and the base URL of its REST interface, which it sends only to callers of its own cluster.
// With it a server finds members whose REST addresses are not, or not first, in its state and its --join.
//
// Without the handshake, a voter that lost its disk and came back under a new id at the old address would be asked for
// votes under its old id, and would grant them: acknowledged writes could vanish. The epoch keeps out servers that a
// recovery from a lost majority has left behind: if they come back, they are a majority among themselves, and Raft
// alone would follow their leader.
const (
	handshakeMagic   = "TMRF"
	handshakeVersion = 1
	// handshakeTimeout bounds how long an accepted connection may be silent.
	handshakeTimeout = 5 * time.Second
	// maxRecentPeers bounds the number of REST addresses kept of servers that answered.
	maxRecentPeers = 32
	// maxRefused bounds the number of refusals remembered as logged.
	maxRefused = 32
)

// ErrRefused is wrapped if another node refuses this node's connection.
var ErrRefused = errors.New("refused by the other node")

// addressed is the library's transport with each call addressed to a server id. While the disk hangs it sends nothing
// as leader, so that the others elect a healthy one.
type addressed struct {
	*raft.NetworkTransport
	disk     *disk
	patience time.Duration // how long a pipeline may accept nothing
	in       *incoming
	activity *activity
	markAt   func(position) mark // in the log of this node
}

// errDiskHangs is returned for calls that a leader with a hung disk does not send.
var errDiskHangs = errors.New("a write to this node's own disk hangs")

// target joins id and address; stream.Dial splits them.
func target(id raft.ServerID, addr raft.ServerAddress) raft.ServerAddress {
	return raft.ServerAddress(id) + "@" + addr
}

func (t addressed) AppendEntriesPipeline(id raft.ServerID, addr raft.ServerAddress) (raft.AppendPipeline, error) {
	p, err := t.NetworkTransport.AppendEntriesPipeline(id, target(id, addr))
	if err != nil {
		return nil, err
	}
	return &pipeline{AppendPipeline: p, disk: t.disk, patience: t.patience, activity: t.activity, markAt: t.markAt}, nil
}

// repeatPause is how long a follower gets no call if nothing is new. The library sends to it again within
// commitTimeout, even without a commit, so that a commit shows there soon. Repeating a call is never needed: a
// pipeline delivers in order or ends, and the next one starts from the beginning.
const repeatPause = 250 * time.Millisecond

// pipeline wraps the library's pipeline. It sends nothing while the disk hangs, and closes if it accepts nothing for
// too long: after a refusal (a follower whose disk is full) the library stops reading answers, and then waits for
// ever for room in the full pipeline; that follower would get nothing more in this term, and the node would never
// stop.
type pipeline struct {
	raft.AppendPipeline
	disk     *disk
	patience time.Duration
	activity *activity
	markAt   func(position) mark
	last     lastCall
}

// lastCall is the content of the last call to a follower.
type lastCall struct {
	term, commit uint64
	at           time.Time
}

// AppendEntries implements raft.AppendPipeline. It skips a call without news, as if the call had been lost: nothing
// depends on its answer, since contact and lease use the heartbeats. The caller would send again within
// commitTimeout; it pauses until the next event. Only one goroutine calls it.
func (p *pipeline) AppendEntries(args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) (raft.AppendFuture,
	error) {
	if p.disk.hangs() {
		return nil, errDiskHangs
	}
	if left := p.last.repeats(args, time.Now()); left > 0 {
		p.activity.pause(left)
		return nil, nil //nolint:nilnil // the library looks at the error only
	}
	cut(args)
	stampCall(args, p.markAt)
	stuck := time.AfterFunc(p.patience, func() { _ = p.Close() }) // the caller sees that it is closed
	defer stuck.Stop()
	return p.AppendPipeline.AppendEntries(args, resp)
}

// repeats returns for how long a call without news may be skipped because the same was sent shortly before. It
// returns 0 if the call has news, and then records it as sent.
func (l *lastCall) repeats(args *raft.AppendEntriesRequest, now time.Time) time.Duration {
	if len(args.Entries) == 0 && args.Term == l.term && args.LeaderCommitIndex == l.commit {
		if left := repeatPause - now.Sub(l.at); left > 0 {
			return min(left, repeatPause)
		}
	}
	l.term, l.commit, l.at = args.Term, args.LeaderCommitIndex, now
	return 0
}

func (t addressed) AppendEntries(id raft.ServerID, addr raft.ServerAddress, args *raft.AppendEntriesRequest,
	resp *raft.AppendEntriesResponse) error {
	if t.disk.hangs() {
		return errDiskHangs
	}
	cut(args)
	stampCall(args, t.markAt)
	return t.NetworkTransport.AppendEntries(id, target(id, addr), args, resp)
}

// callBytes bounds the bytes of log entries in one call, except for a single larger entry: over a link of 10 Mbit/s
// they take a third of the time that a call may take. The library bounds only the number of entries, and repeats a
// call that took too long unchanged.
const callBytes = 1 << 20

// cut reduces a call to as many entries as fit into callBytes. The library continues after those that were sent.
func cut(args *raft.AppendEntriesRequest) {
	size := 0
	for i, e := range args.Entries {
		if size += len(e.Data) + len(e.Extensions); size > callBytes && i > 0 {
			args.Entries = args.Entries[:i]
			return
		}
	}
}

// stampCall puts the mark of the entry before a call's own ones into the call.
func stampCall(args *raft.AppendEntriesRequest, markAt func(position) mark) {
	if args.PrevLogEntry > 0 { // not a heartbeat
		args.Leader = markAt(position{args.PrevLogEntry, args.PrevLogTerm}).toCall() //nolint:staticcheck // see marks.go
	}
}

// Consumer returns the incoming calls.
func (t addressed) Consumer() <-chan raft.RPC { return t.in.calls }

// Close ends all connections; incoming calls are no longer passed on.
func (t addressed) Close() error {
	t.in.close()
	return t.NetworkTransport.Close()
}

func (t addressed) RequestVote(id raft.ServerID, addr raft.ServerAddress, args *raft.RequestVoteRequest,
	resp *raft.RequestVoteResponse) error {
	return t.NetworkTransport.RequestVote(id, target(id, addr), args, resp)
}

func (t addressed) RequestPreVote(id raft.ServerID, addr raft.ServerAddress, args *raft.RequestPreVoteRequest,
	resp *raft.RequestPreVoteResponse) error {
	return t.NetworkTransport.RequestPreVote(id, target(id, addr), args, resp)
}

func (t addressed) InstallSnapshot(id raft.ServerID, addr raft.ServerAddress, args *raft.InstallSnapshotRequest,
	resp *raft.InstallSnapshotResponse, data io.Reader) error {
	args.Leader = t.markAt(position{args.LastLogIndex, args.LastLogTerm}).toCall()
	return t.NetworkTransport.InstallSnapshot(id, target(id, addr), args, resp, data)
}

func (t addressed) TimeoutNow(id raft.ServerID, addr raft.ServerAddress, args *raft.TimeoutNowRequest,
	resp *raft.TimeoutNowResponse) error {
	return t.NetworkTransport.TimeoutNow(id, target(id, addr), args, resp)
}

// stream is the raft.StreamLayer, with a handshake at the start of each connection.
type stream struct {
	net.Listener
	id        string
	advertise string
	rest      string // base URL
	dial      func(addr string, timeout time.Duration) (net.Conn, error)
	clusterID func() string
	epoch     func() uint64
	member    func(id string) bool // of the newest configuration of this node
	log       hclog.Logger

	mu          sync.Mutex
	accepted    *places           // nil once closed
	moved       map[string]string // newest addresses of servers whose configured address is older; see Node.Moved
	recentPeers []string          // REST addresses of servers that answered, newest last; at most maxRecentPeers
	refused     map[string]string // refusals as last logged, by kind and server id; at most maxRefused
}

// Close stops listening and closes accepted connections, which the library leaves open.
func (s *stream) Close() error {
	err := s.Listener.Close()
	s.mu.Lock()
	left := s.accepted
	s.accepted = nil
	s.mu.Unlock()
	if left != nil {
		for g := range left.of {
			err = errors.Join(err, g.Conn.Close())
		}
	}
	return err
}

// admit records an accepted connection, unless this end is closed. Another connection may be closed in exchange.
func (s *stream) admit(g *guarded) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.accepted == nil {
		return false
	}
	drop(s.accepted.add(g, g.RemoteAddr()))
	return true
}

// identify moves a connection whose handshake was accepted to the slots of its server.
func (s *stream) identify(g *guarded, id string) {
	member := s.member(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.refused, wasRefused+id)
	if s.accepted != nil {
		drop(s.accepted.identify(g, id, member))
	}
}

// recheck closes accepted connections that have identified themselves and whose callers' certificates check refuses.
func (s *stream) recheck(check func(*tls.ConnectionState) error) {
	s.mu.Lock()
	var known map[*guarded]string
	if s.accepted != nil {
		known = s.accepted.known()
	}
	s.mu.Unlock()
	for g, id := range known {
		conn, ok := g.Conn.(*tls.Conn)
		if !ok {
			continue
		}
		state := conn.ConnectionState()
		if err := check(&state); err != nil {
			s.log.Warn("connection of a manager closed: its certificate is no longer valid", "server", id, "from",
				hostOf(g.RemoteAddr()), "error", err)
			_ = conn.Close() // its reader sees that it is closed
		}
	}
}

// drop closes a connection to make room for others; its reader sees that it is closed.
func drop(g *guarded) {
	if g != nil {
		delete(g.stream.accepted.of, g)
		_ = g.Conn.Close() // the error does not matter
	}
}

// Addr returns the address that the other nodes dial.
func (s *stream) Addr() net.Addr { return address(s.advertise) }

type address string

func (a address) Network() string { return "tcp" }
func (a address) String() string  { return string(a) }

// Dial connects to a server and performs the handshake.
func (s *stream) Dial(to raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	id, addr, ok := strings.Cut(string(to), "@")
	if !ok {
		return nil, fmt.Errorf("%w: address %q has no server id", ErrConfig, to)
	}
	s.mu.Lock()
	if newer := s.moved[id]; newer != "" {
		addr = newer
	}
	s.mu.Unlock()
	conn, err := s.dial(addr, timeout)
	if err != nil {
		return nil, err
	}
	if err := s.handshake(conn, id, timeout); err != nil {
		err = fmt.Errorf("%s at %s: %w", id, addr, err)
		if errors.Is(err, ErrRefused) {
			s.complain(refusesThis, id, "error", err)
		}
		return nil, errors.Join(err, conn.Close())
	}
	s.mu.Lock()
	delete(s.refused, refusesThis+id)
	s.mu.Unlock()
	return conn, nil
}

// Log messages about refusals.
const (
	refusesThis = "another manager refuses connections of this one"
	wasRefused  = "connection of a manager refused"
)

// complain logs a refusal by or of a server, once as long as the reason stays the same.
func (s *stream) complain(what, id string, args ...any) {
	text := fmt.Sprint(args...)
	s.mu.Lock()
	known := s.refused[what+id] == text
	if !known && len(s.refused) >= maxRefused {
		clear(s.refused)
	}
	s.refused[what+id] = text
	s.mu.Unlock()
	if !known {
		s.log.Warn(what, append([]any{"server", id}, args...)...)
	}
}

// handshake sends the handshake and receives the reply.
func (s *stream) handshake(conn net.Conn, id string, timeout time.Duration) error {
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	own := handshake{cluster: s.clusterID(), wants: id, id: s.id, epoch: s.epoch()}
	if _, err := conn.Write(own.encode()); err != nil {
		return err
	}
	answer, err := readHandshakeReply(conn)
	if err != nil {
		return fmt.Errorf("no answer to the handshake: %w", err)
	}
	s.notePeer(answer.rest) // even if it refuses: this server may have been removed, and has to find out
	if answer.refusal != "" {
		return fmt.Errorf("%w: %s", ErrRefused, answer.refusal)
	}
	return conn.SetDeadline(time.Time{})
}

// notePeer records the REST address of a server that answered, if it uses the same scheme (TLS or not) as this
// server's. The address recorded longest ago makes room for it.
func (s *stream) notePeer(rest string) {
	if scheme, host, ok := strings.Cut(rest, "://"); !ok || host == "" || !strings.HasPrefix(s.rest, scheme+"://") {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := slices.Index(s.recentPeers, rest); k >= 0 {
		s.recentPeers = slices.Delete(s.recentPeers, k, k+1)
	} else if len(s.recentPeers) == maxRecentPeers {
		s.recentPeers = slices.Delete(s.recentPeers, 0, 1)
	}
	s.recentPeers = append(s.recentPeers, rest)
}

// Accept returns connections that check the handshake at their first read, in the goroutine of their handler.
func (s *stream) Accept() (net.Conn, error) {
	for {
		conn, err := s.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if g := (&guarded{Conn: conn, stream: s}); s.admit(g) {
			return g, nil
		}
		if err := conn.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			return nil, err
		}
	}
}

// guarded is an accepted connection that checks the handshake.
type guarded struct {
	net.Conn
	stream     *stream
	identified bool // used by the reading goroutine only
}

func (g *guarded) Read(b []byte) (int, error) {
	if !g.identified {
		if err := g.receive(); err != nil {
			return 0, err
		}
		g.identified = true
	}
	n, err := g.Conn.Read(b)
	if errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.ECONNRESET) {
		return n, io.EOF // one side stops: a normal end, not an error to log
	}
	return n, err
}

func (g *guarded) Close() error {
	g.stream.mu.Lock()
	if g.stream.accepted != nil {
		delete(g.stream.accepted.of, g)
	}
	g.stream.mu.Unlock()
	return g.Conn.Close()
}

// receive reads the handshake and answers it.
func (g *guarded) receive() error {
	if err := g.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return err
	}
	who, err := readHandshake(g.Conn)
	if err != nil {
		return err
	}
	answer := g.stream.answer(who)
	if _, err := g.Write(answer.encode()); err != nil {
		return fmt.Errorf("handshake: %w", err)
	}
	if answer.refusal != "" {
		g.stream.complain(wasRefused, who.id, "from", hostOf(g.RemoteAddr()), "reason", answer.refusal)
		return io.EOF // the library would log any other error each time
	}
	g.stream.identify(g, who.id)
	return g.SetDeadline(time.Time{})
}

// handshake is the first message of a caller.
type handshake struct {
	cluster, wants, id string
	epoch              uint64
}

// encode returns the bytes that a caller sends. No text may be longer than 255 bytes.
func (w handshake) encode() []byte {
	msg := append([]byte(handshakeMagic), handshakeVersion)
	for _, text := range [...]string{w.cluster, w.wants, w.id} {
		msg = appendShort(msg, text)
	}
	return binary.BigEndian.AppendUint64(msg, w.epoch)
}

// handshakeReply is the callee's answer to a handshake.
type handshakeReply struct {
	refusal string // why it refuses the caller; empty if it accepts
	rest    string // base URL of its REST interface; empty if it does not disclose it
}

// encode returns the bytes that a callee sends. No text may be longer than 255 bytes.
func (w handshakeReply) encode() []byte { return appendShort(appendShort(nil, w.refusal), w.rest) }

// readHandshakeReply reads the callee's answer and no byte after it.
func readHandshakeReply(r io.Reader) (w handshakeReply, err error) {
	if w.refusal, err = readShort(r); err == nil {
		w.rest, err = readShort(r)
	}
	return w, err
}

// readHandshake reads the caller's handshake and no byte after it.
func readHandshake(r io.Reader) (who handshake, err error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return handshake{}, fmt.Errorf("handshake: %w", err)
	}
	if string(head[:4]) != handshakeMagic || head[4] != handshakeVersion {
		return handshake{}, fmt.Errorf("handshake %q: not a manager of this version", head[:])
	}
	for _, text := range [...]*string{&who.cluster, &who.wants, &who.id} {
		if *text, err = readShort(r); err != nil {
			return handshake{}, fmt.Errorf("handshake: %w", err)
		}
	}
	var epoch [8]byte
	if _, err := io.ReadFull(r, epoch[:]); err != nil {
		return handshake{}, fmt.Errorf("handshake: %w", err)
	}
	who.epoch = binary.BigEndian.Uint64(epoch[:])
	return who, nil
}

// answer returns the answer to a caller.
func (s *stream) answer(who handshake) (w handshakeReply) {
	w.refusal = s.judge(who)
	if own := s.clusterID(); own != "" && who.cluster == own && len(s.rest) <= math.MaxUint8 {
		w.rest = s.rest
	}
	return w
}

// judge returns the reason to refuse a caller, or "". The reason has at most 255 bytes.
func (s *stream) judge(who handshake) string {
	own := s.clusterID()
	switch {
	case who.wants != s.id:
		return fmt.Sprintf("this is server %.60s, not %.60s: the latter may have lost its data; remove it from "+
			"the cluster", s.id, who.wants)
	case own != "" && who.cluster != "" && who.cluster != own:
		return fmt.Sprintf("this is server %.40s of cluster %.40s, the caller is %.40s of cluster "+
			"%.40s", s.id, own, who.id, who.cluster)
	case who.epoch < s.epoch() && !s.member(who.id):
		return fmt.Sprintf("this cluster was recovered without %.60s (epoch %d, the caller has %d): delete its data "+
			"folder, it then joins as a new one", who.id, s.epoch(), who.epoch)
	}
	return ""
}

// appendShort appends a length byte and a text of at most 255 bytes.
func appendShort(b []byte, text string) []byte { return append(append(b, byte(len(text))), text...) }

// readShort reads a length byte and that many bytes.
func readShort(r io.Reader) (string, error) {
	var buf [256]byte
	if _, err := io.ReadFull(r, buf[:1]); err != nil {
		return "", err
	}
	n := int(buf[0])
	if _, err := io.ReadFull(r, buf[:n]); err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// transportTimeout returns how long a call between managers may take. InstallSnapshot gets more, depending on its
// size.
func transportTimeout(heartbeat time.Duration) time.Duration {
	return max(time.Second, heartbeatsPerCall*heartbeat)
}

const heartbeatsPerCall = 10
