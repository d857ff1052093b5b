package consensus

import (
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

// A connection between managers begins with a greeting: magic, version, cluster id of the caller (empty while it has
// none), server id that the caller wants, the caller's own, each with a length byte, and the caller's epoch in 8 bytes.
// The callee answers with two texts, each with a length byte: why it does not talk to the caller, after which it
// closes, or nothing; and the base URL of its REST interface, which only callers of its own cluster are told. By that a
// server finds others of its log whose REST addresses are not in its state and its --join, or not at the top of them.
//
// Without it a voter that lost its disk and came back under a new id at the old address would be asked for votes in
// its old name, and would grant them: acknowledged writes could vanish. The epoch keeps out what a recovery from a lost
// majority has left behind: old servers that come back have a majority among themselves, and Raft alone would follow
// their leader.
const (
	greetingMagic   = "TMRF"
	greetingVersion = 1
	// greetingTimeout bounds how long an accepted connection may be silent.
	greetingTimeout = 5 * time.Second
	// maxHeard bounds the REST addresses that are kept of servers that answered.
	maxHeard = 32
	// maxRefused bounds the refusals of which it is known that they are logged.
	maxRefused = 32
)

// ErrRefused is wrapped when another node does not talk to this one.
var ErrRefused = errors.New("refused by the other node")

// addressed is the library's transport, with each call addressed to a server id. While the disk hangs it does not speak
// as leader, so that the others elect one that can work.
type addressed struct {
	*raft.NetworkTransport
	disk     *disk
	patience time.Duration // with a pipeline that takes nothing
	in       *incoming
	stirs    *stirs
}

// errDiskHangs is why a leader is silent.
var errDiskHangs = errors.New("a write to this node's own disk hangs")

// target joins id and address; stream.Dial takes them apart.
func target(id raft.ServerID, addr raft.ServerAddress) raft.ServerAddress {
	return raft.ServerAddress(id) + "@" + addr
}

func (t addressed) AppendEntriesPipeline(id raft.ServerID, addr raft.ServerAddress) (raft.AppendPipeline, error) {
	p, err := t.NetworkTransport.AppendEntriesPipeline(id, target(id, addr))
	if err != nil {
		return nil, err
	}
	return &pipeline{AppendPipeline: p, disk: t.disk, patience: t.patience, stirs: t.stirs}, nil
}

// repeatPause is how long a follower is told nothing new: the library asks it again and again within commitTimeout, so
// that a commit shows there soon, also when there is none. Nothing needs the same again: a pipeline delivers in order
// or ends, and the next one begins with everything.
const repeatPause = 250 * time.Millisecond

// pipeline is the library's, silent while the disk hangs, and closed when it takes nothing for too long: the library
// stops to read answers after one that refuses (a follower whose disk is full) and then waits for room in the full
// pipeline for ever; that follower would get nothing more in this term, and the node would never stop.
type pipeline struct {
	raft.AppendPipeline
	disk     *disk
	patience time.Duration
	stirs    *stirs
	last     saidLast
}

// saidLast is what a follower was told last.
type saidLast struct {
	term, commit uint64
	at           time.Time
}

// AppendEntries implements raft.AppendPipeline. A call that says nothing new is not made, as if it had been lost:
// nothing counts on its answer, since contact and lease are the heartbeats'. Its caller, who would ask again within
// commitTimeout, rests until something stirs. It is called by one goroutine.
func (p *pipeline) AppendEntries(args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) (raft.AppendFuture,
	error) {
	if p.disk.hangs() {
		return nil, errDiskHangs
	}
	if left := p.last.repeats(args, time.Now()); left > 0 {
		p.stirs.rest(left)
		return nil, nil //nolint:nilnil // the library looks at the error only
	}
	cut(args)
	stuck := time.AfterFunc(p.patience, func() { _ = p.Close() }) // the caller sees that it is closed
	defer stuck.Stop()
	return p.AppendPipeline.AppendEntries(args, resp)
}

// repeats returns for how long a call that says nothing new need not be made, as the same was said in the last moments;
// 0: it says something, which counts as said.
func (l *saidLast) repeats(args *raft.AppendEntriesRequest, now time.Time) time.Duration {
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
	return t.NetworkTransport.AppendEntries(id, target(id, addr), args, resp)
}

// callBytes is how much of the log one call carries, but for an entry that is larger: over a link of 10 Mbit/s it takes
// a third of the time that a call may take. The library bounds the number of entries alone, and makes a call that took
// too long again as it was.
const callBytes = 1 << 20

// cut leaves in a call as many of its entries as it carries. The library goes on behind those that are left.
func cut(args *raft.AppendEntriesRequest) {
	size := 0
	for i, e := range args.Entries {
		if size += len(e.Data) + len(e.Extensions); size > callBytes && i > 0 {
			args.Entries = args.Entries[:i]
			return
		}
	}
}

// Consumer returns the calls of others.
func (t addressed) Consumer() <-chan raft.RPC { return t.in.calls }

// Close ends all connections; calls of others are passed on no longer.
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
	return t.NetworkTransport.InstallSnapshot(id, target(id, addr), args, resp, data)
}

func (t addressed) TimeoutNow(id raft.ServerID, addr raft.ServerAddress, args *raft.TimeoutNowRequest,
	resp *raft.TimeoutNowResponse) error {
	return t.NetworkTransport.TimeoutNow(id, target(id, addr), args, resp)
}

// stream is the raft.StreamLayer: connections with a greeting.
type stream struct {
	net.Listener
	id        string
	advertise string
	rest      string // base URL
	dial      func(addr string, timeout time.Duration) (net.Conn, error)
	clusterID func() string
	epoch     func() uint64
	member    func(id string) bool // of the newest configuration that this node has
	log       hclog.Logger

	mu       sync.Mutex
	accepted *places           // nil once closed
	moved    map[string]string // newest address of servers whose configured one is older; see Node.Moved
	heard    []string          // REST addresses of those that answered, the newest last; at most maxHeard
	refused  map[string]string // how refusals were logged, by what and whose they are; at most maxRefused
}

// Close stops listening and closes what was accepted: the library leaves those connections to their callers.
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

// admit takes a connection in, unless this end is closed. Another one may have to go for it.
func (s *stream) admit(g *guarded) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.accepted == nil {
		return false
	}
	drop(s.accepted.add(g, g.RemoteAddr()))
	return true
}

// greeted returns a connection that has greeted the place of its server.
func (s *stream) greeted(g *guarded, id string) {
	member := s.member(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.refused, wasRefused+id)
	if s.accepted != nil {
		drop(s.accepted.greeted(g, id, member))
	}
}

// drop ends a connection for others' sake: whoever reads it finds it closed.
func drop(g *guarded) {
	if g != nil {
		delete(g.stream.accepted.of, g)
		_ = g.Conn.Close() // what it says of its end is no matter
	}
}

// Addr returns the address that the others dial.
func (s *stream) Addr() net.Addr { return address(s.advertise) }

type address string

func (a address) Network() string { return "tcp" }
func (a address) String() string  { return string(a) }

// Dial connects and greets.
func (s *stream) Dial(to raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	id, addr, ok := strings.Cut(string(to), "@")
	if !ok {
		return nil, fmt.Errorf("%w: address %q names no server id", ErrConfig, to)
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
	if err := s.greet(conn, id, timeout); err != nil {
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

// What is logged of refusals.
const (
	refusesThis = "another node does not talk to this one"
	wasRefused  = "a node was refused"
)

// complain logs a refusal by or of a server, once for as long as it stays the same.
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

func (s *stream) greet(conn net.Conn, id string, timeout time.Duration) error {
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	own := greeting{cluster: s.clusterID(), wants: id, id: s.id, epoch: s.epoch()}
	if _, err := conn.Write(own.encode()); err != nil {
		return err
	}
	answer, err := readWelcome(conn)
	if err != nil {
		return fmt.Errorf("no answer to the greeting: %w", err)
	}
	s.hear(answer.rest) // one that is refused may have been removed, and has to ask
	if answer.refusal != "" {
		return fmt.Errorf("%w: %s", ErrRefused, answer.refusal)
	}
	return conn.SetDeadline(time.Time{})
}

// hear keeps the REST address of a server that answered, if it is reached as this one's is, with TLS or without; the
// one that was heard longest ago goes for it.
func (s *stream) hear(rest string) {
	if scheme, host, ok := strings.Cut(rest, "://"); !ok || host == "" || !strings.HasPrefix(s.rest, scheme+"://") {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := slices.Index(s.heard, rest); k >= 0 {
		s.heard = slices.Delete(s.heard, k, k+1)
	} else if len(s.heard) == maxHeard {
		s.heard = slices.Delete(s.heard, 0, 1)
	}
	s.heard = append(s.heard, rest)
}

// Accept gives connections that check the greeting at their first read, in the goroutine of their own handler.
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

// guarded is an accepted connection.
type guarded struct {
	net.Conn
	stream  *stream
	greeted bool // used by the reading goroutine only
}

func (g *guarded) Read(b []byte) (int, error) {
	if !g.greeted {
		if err := g.receive(); err != nil {
			return 0, err
		}
		g.greeted = true
	}
	n, err := g.Conn.Read(b)
	if errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.ECONNRESET) {
		return n, io.EOF // one of the two stops: that is the end of a connection, not an error to log
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

// receive reads the greeting and answers it.
func (g *guarded) receive() error {
	if err := g.SetDeadline(time.Now().Add(greetingTimeout)); err != nil {
		return err
	}
	who, err := readGreeting(g.Conn)
	if err != nil {
		return err
	}
	answer := g.stream.answer(who)
	if _, err := g.Write(answer.encode()); err != nil {
		return fmt.Errorf("greeting: %w", err)
	}
	if answer.refusal != "" {
		g.stream.complain(wasRefused, who.id, "from", hostOf(g.RemoteAddr()), "reason", answer.refusal)
		return io.EOF // the library would log another error each time
	}
	g.stream.greeted(g, who.id)
	return g.SetDeadline(time.Time{})
}

// greeting is what a caller says of itself.
type greeting struct {
	cluster, wants, id string
	epoch              uint64
}

// encode returns what a caller sends. No text has more than 255 bytes.
func (w greeting) encode() []byte {
	msg := append([]byte(greetingMagic), greetingVersion)
	for _, text := range [...]string{w.cluster, w.wants, w.id} {
		msg = appendShort(msg, text)
	}
	return binary.BigEndian.AppendUint64(msg, w.epoch)
}

// welcome is what a callee answers.
type welcome struct {
	refusal string // why it does not talk to the caller; empty when it does
	rest    string // base URL of its REST interface; empty when the caller is not told
}

// encode returns what a callee sends. No text has more than 255 bytes.
func (w welcome) encode() []byte { return appendShort(appendShort(nil, w.refusal), w.rest) }

// readWelcome reads what a callee sends, and not a byte more.
func readWelcome(r io.Reader) (w welcome, err error) {
	if w.refusal, err = readShort(r); err == nil {
		w.rest, err = readShort(r)
	}
	return w, err
}

// readGreeting reads what a caller sends, and not a byte more.
func readGreeting(r io.Reader) (who greeting, err error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return greeting{}, fmt.Errorf("greeting: %w", err)
	}
	if string(head[:4]) != greetingMagic || head[4] != greetingVersion {
		return greeting{}, fmt.Errorf("greeting %q: not a manager of this version", head[:])
	}
	for _, text := range [...]*string{&who.cluster, &who.wants, &who.id} {
		if *text, err = readShort(r); err != nil {
			return greeting{}, fmt.Errorf("greeting: %w", err)
		}
	}
	var epoch [8]byte
	if _, err := io.ReadFull(r, epoch[:]); err != nil {
		return greeting{}, fmt.Errorf("greeting: %w", err)
	}
	who.epoch = binary.BigEndian.Uint64(epoch[:])
	return who, nil
}

// answer returns what a caller is told.
func (s *stream) answer(who greeting) (w welcome) {
	w.refusal = s.judge(who)
	if own := s.clusterID(); own != "" && who.cluster == own && len(s.rest) <= math.MaxUint8 {
		w.rest = s.rest
	}
	return w
}

// judge returns the reason for which a caller is refused, empty for none. It has at most 255 bytes.
func (s *stream) judge(who greeting) string {
	own := s.clusterID()
	switch {
	case who.wants != s.id:
		return fmt.Sprintf("this is server %.60s, you want %.60s: it may have lost its data; remove the old server from "+
			"the cluster", s.id, who.wants)
	case own != "" && who.cluster != "" && who.cluster != own:
		return fmt.Sprintf("this is %.40s of cluster %.40s, you are %.40s of cluster %.40s", s.id, own, who.id, who.cluster)
	case who.epoch < s.epoch() && !s.member(who.id):
		return fmt.Sprintf("this cluster was recovered without %.60s (epoch %d, you have %d): wipe its data folder, it "+
			"then joins as a new one", who.id, s.epoch(), who.epoch)
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

// transportTimeout is how long a call between managers may take. InstallSnapshot has more, by its size.
func transportTimeout(heartbeat time.Duration) time.Duration {
	return max(time.Second, heartbeatsPerCall*heartbeat)
}

const heartbeatsPerCall = 10
