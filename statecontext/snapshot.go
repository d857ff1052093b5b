package statecontext

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/cespare/xxhash/v2"

	"tidemark/index"
)

// snapshotForm returns the format of a state's snapshot. It is the state's format level, so that during an upgrade
// every node of the cluster can read the snapshots of the others.
func snapshotForm(s *State) byte { return byte(s.formatLevel) }

var (
	// ErrSnapshotVersion is wrapped if a snapshot has a format that this program does not support.
	ErrSnapshotVersion = errors.New("unknown state snapshot version")
	// ErrSnapshotCorrupt is wrapped if a snapshot is damaged or truncated, or is not a snapshot.
	ErrSnapshotCorrupt = errors.New("corrupt state snapshot")
)

var snapshotMagic = [8]byte{'T', 'I', 'D', 'E', 'M', 'A', 'R', 'K'}

// The records of a snapshot: type byte, length, payload, CRC-32C of type and payload. They appear in this order, each
// kind sorted by key; the end record holds their number and a hash of all their bytes.
const (
	recordHeader    = 1
	recordManager   = 2
	recordProjector = 3
	recordIndexer   = 4
	recordRemoved   = 5
	recordBucket    = 6
	recordIndex     = 7
	recordLedger    = 8
	recordUser      = 9
	recordToken     = 10
	recordSettings  = 11
	recordRebalance = 12
	recordStep      = 13
	recordGoing     = 14
	recordDiffers   = 15
	recordRestored  = 16
	recordStaging   = 17
	recordChunk     = 18
	recordEnd       = 255
)

// WriteSnapshot writes a state together with the index of the last Raft entry applied to it.
func WriteSnapshot(w io.Writer, s *State) error {
	buffered := bufio.NewWriterSize(w, 64<<10)
	if _, err := buffered.Write(append(snapshotMagic[:], snapshotForm(s))); err != nil {
		return fmt.Errorf("state snapshot: %w", err)
	}
	rw := recordWriter{w: buffered, sum: xxhash.New(), texts: true}
	rw.state(s, s.appliedIndex)
	end := binary.LittleEndian.AppendUint64(appendUint(nil, rw.count), rw.sum.Sum64())
	rw.write(recordEnd, end)
	if rw.err == nil {
		rw.err = buffered.Flush()
	}
	if rw.err != nil {
		return fmt.Errorf("state snapshot: %w", rw.err)
	}
	return nil
}

// Hash returns a hash of the content of a state: two nodes that have applied the same log have the same hash. It
// covers neither the Raft index nor the messages of remembered rejections, which may differ between versions.
func Hash(s *State) uint64 {
	rw := recordWriter{w: io.Discard, sum: xxhash.New()}
	rw.state(s, 0)
	return rw.sum.Sum64()
}

type recordWriter struct {
	w       io.Writer
	sum     *xxhash.Digest
	count   uint64
	payload []byte
	frame   []byte
	texts   bool // include the messages of rejections
	err     error
}

func (rw *recordWriter) write(kind byte, payload []byte) {
	if rw.err != nil {
		return
	}
	if len(payload) > maxRecordBytes {
		rw.err = fmt.Errorf("record of type %d has %d bytes, at most %d", kind, len(payload), maxRecordBytes)
		return
	}
	f := appendBytes(append(rw.frame[:0], kind), payload)
	crc := crc32.Update(crc32.Checksum([]byte{kind}, castagnoli), castagnoli, payload)
	f = binary.LittleEndian.AppendUint32(f, crc)
	rw.frame = f
	rw.count++
	if _, err := rw.sum.Write(f); err != nil {
		rw.err = err
		return
	}
	_, rw.err = rw.w.Write(f)
}

func (rw *recordWriter) state(s *State, appliedIndex uint64) {
	p := appendUint(rw.payload[:0], appliedIndex)
	p = appendString(appendUint(p, s.cas), s.clusterID)
	p = appendUint(appendUint(p, s.epoch), s.formatLevel)
	p = appendUint(appendInt(appendInt(p, s.timeMS), s.wallMS), s.revision)
	p = appendLimits(appendString(appendUint(p, s.term), s.leader), s.limits)
	p = append(appendUint(appendUint(p, uint64(s.nextIndexID)), uint64(s.nextCopyID)), byte(s.nextNodeID))
	p = appendUint(appendUint(p, s.ledger.next), s.rebalances.next)
	p = appendUint(appendUint(appendUint(p, s.passed.generation), s.passed.stability), s.passed.rollback)
	rw.write(recordHeader, p)
	for m := range s.Managers() {
		p = appendManager(p[:0], m)
		rw.write(recordManager, p)
	}
	for x := range s.Projectors() {
		p = appendProjector(p[:0], x)
		rw.write(recordProjector, p)
	}
	for i := range s.Indexers() {
		p = appendAbsence(appendBool(appendIndexer(p[:0], i), i.Evicting), i.Offline)
		rw.write(recordIndexer, p)
	}
	s.removed.Scan(func(uuid string, cas uint64) bool {
		p = appendUint(appendString(p[:0], uuid), cas)
		rw.write(recordRemoved, p)
		return rw.err == nil
	})
	for b := range s.Buckets() {
		p = appendBucket(p[:0], b)
		rw.write(recordBucket, p)
	}
	for x := range s.Indexes() {
		p = appendDefinition(p[:0], &x.Definition)
		p = appendTopology(p, &x.Topology)
		p = appendUint(appendUint(p, x.TopologyCAS), x.PlacedCAS)
		rw.write(recordIndex, p)
	}
	s.ledger.ages.Scan(func(_ uint64, key string) bool {
		e, _ := s.ledger.entries.Get(key)
		p = appendLedgerEntry(p[:0], key, e, rw.texts)
		rw.write(recordLedger, p)
		return rw.err == nil
	})
	for u := range s.Users() {
		p = appendUser(p[:0], u)
		rw.write(recordUser, p)
	}
	for x := range s.Tokens() {
		p = appendToken(p[:0], x)
		rw.write(recordToken, p)
	}
	for b := range s.AllBucketSettings() {
		p = appendBucketSettings(p[:0], b)
		rw.write(recordSettings, p)
	}
	p = rw.rebalances(s, p)
	p = rw.differences(s, p)
	rw.payload = rw.restores(s, p)
}

// restores writes the newest finished restore and the restore in progress.
func (rw *recordWriter) restores(s *State, p []byte) []byte {
	if r := s.restored; r != nil {
		p = appendUint(append(appendString(p[:0], r.ID), byte(r.Mode)), r.CAS)
		p = appendUint(appendString(appendInt(p, r.TimeMS), r.FromID), r.FromCAS)
		rw.write(recordRestored, p)
	}
	if g := s.staging; g != nil {
		p = append(appendUint(append(appendString(p[:0], g.ID), byte(g.Mode)), g.Bytes), g.Sum[:]...)
		p = appendInt(p, g.SinceMS)
		rw.write(recordStaging, p)
		for _, chunk := range g.chunks {
			rw.write(recordChunk, chunk)
		}
	}
	return p
}

// ReadSnapshot is ReadSnapshotUpTo with the newest format level of this program.
func ReadSnapshot(r io.Reader) (*State, error) { return ReadSnapshotUpTo(FormatLevel, r) }

// ReadSnapshotUpTo reads a snapshot written by WriteSnapshot as a program does whose newest format level is level. It
// verifies every checksum and the state's invariants, and ignores bytes after the end record. Errors wrap
// ErrSnapshotVersion (and ErrFormatLevel if the format is only too new), ErrSnapshotCorrupt, or the reader's error.
func ReadSnapshotUpTo(level uint64, r io.Reader) (*State, error) {
	s, err := decodeSnapshot(level, r)
	if err != nil {
		return nil, err
	}
	if err := Check(s); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSnapshotCorrupt, err)
	}
	return s, nil
}

// decodeSnapshot is ReadSnapshotUpTo without the invariants: its result depends only on the bytes and the level.
func decodeSnapshot(level uint64, r io.Reader) (*State, error) {
	br := bufio.NewReaderSize(r, 64<<10)
	form, err := readHead(br, level)
	if err != nil {
		return nil, err
	}
	rr := recordReader{r: br, sum: xxhash.New()}
	s := New()
	for {
		before := rr.sum.Sum64()
		kind, payload, err := rr.next()
		if err != nil {
			return nil, err
		}
		d := decoder{b: payload}
		if kind == recordEnd {
			if !rr.endsAs(&d, before) {
				return nil, fmt.Errorf("%w: the end does not match its %d records", ErrSnapshotCorrupt, rr.count-1)
			}
			break
		}
		if (kind == recordHeader) != (rr.count == 1) {
			return nil, fmt.Errorf("%w: record %d is of type %d", ErrSnapshotCorrupt, rr.count, kind)
		}
		s.load(kind, &d)
		if err := d.end(); err != nil {
			return nil, fmt.Errorf("%w: record %d of type %d: %w", ErrSnapshotCorrupt, rr.count, kind, err)
		}
	}
	if s.formatLevel != form {
		return nil, fmt.Errorf("%w: form %d with a state of format level %d", ErrSnapshotCorrupt, form, s.formatLevel)
	}
	return s, nil
}

// readHead reads the head of a snapshot and returns its format, which is at most level.
func readHead(r io.Reader, level uint64) (form uint64, err error) {
	var head [9]byte
	if _, err := io.ReadFull(r, head[:]); err != nil || [8]byte(head[:8]) != snapshotMagic {
		return 0, fmt.Errorf("%w: does not begin with %q", ErrSnapshotCorrupt, snapshotMagic[:])
	}
	switch form = uint64(head[8]); {
	case form == 0:
		return 0, fmt.Errorf("%w 0, this program supports 1 to %d", ErrSnapshotVersion, level)
	case form > level:
		return 0, fmt.Errorf("%w %d: %w: this program supports up to %d: install the version of tidemark that wrote it",
			ErrSnapshotVersion, form, ErrFormatLevel, level)
	}
	return form, nil
}

type recordReader struct {
	r       *bufio.Reader
	sum     *xxhash.Digest
	count   uint64
	payload []byte
}

// endsAs reports whether d, the end record, has the number of the records before it and the hash of their bytes.
func (r *recordReader) endsAs(d *decoder, before uint64) bool {
	count, sum := d.uint(), [8]byte{}
	d.fixed(sum[:])
	return d.end() == nil && count == r.count-1 && binary.LittleEndian.Uint64(sum[:]) == before
}

// next returns the next record; the payload is valid until the next call.
func (rr *recordReader) next() (kind byte, payload []byte, err error) {
	torn := func(err error) error {
		return fmt.Errorf("%w: torn after %d records: %w", ErrSnapshotCorrupt, rr.count, err)
	}
	if kind, err = rr.r.ReadByte(); err != nil {
		return 0, nil, torn(err)
	}
	n, err := binary.ReadUvarint(rr.r)
	if err != nil {
		return 0, nil, torn(err)
	}
	if n > maxRecordBytes {
		return 0, nil, fmt.Errorf("%w: record %d claims %d bytes, at most %d", ErrSnapshotCorrupt, rr.count+1, n,
			maxRecordBytes)
	}
	if rr.payload, err = readAtMost(rr.r, rr.payload[:0], int(n)); err != nil {
		return 0, nil, torn(err)
	}
	var crc [4]byte
	if _, err := io.ReadFull(rr.r, crc[:]); err != nil {
		return 0, nil, torn(err)
	}
	got := crc32.Update(crc32.Checksum([]byte{kind}, castagnoli), castagnoli, rr.payload)
	if want := binary.LittleEndian.Uint32(crc[:]); got != want {
		return 0, nil, fmt.Errorf("%w: record %d of type %d has checksum %08x, want %08x", ErrSnapshotCorrupt, rr.count+1,
			kind, got, want)
	}
	rr.count++
	for _, part := range [...][]byte{appendUint([]byte{kind}, n), rr.payload, crc[:]} {
		if _, err := rr.sum.Write(part); err != nil {
			return 0, nil, err
		}
	}
	return kind, rr.payload, nil
}

// readAtMost reads n bytes in pieces, so that a corrupt length does not allocate memory.
func readAtMost(r io.Reader, dst []byte, n int) ([]byte, error) {
	const piece = 64 << 10
	for n > 0 {
		step := min(n, piece)
		at := len(dst)
		dst = append(dst, make([]byte, step)...)
		if _, err := io.ReadFull(r, dst[at:]); err != nil {
			return dst, err
		}
		n -= step
	}
	return dst, nil
}

// load adds one record to the state being read. Errors stay in d.
func (s *State) load(kind byte, d *decoder) {
	switch kind {
	case recordHeader:
		s.loadHeader(d)
	case recordBucket:
		b := d.bucket()
		s.buckets.Set(b.Name, b)
	case recordIndex:
		x := &Index{Definition: d.definition(), Topology: d.topology(), TopologyCAS: d.uint(), PlacedCAS: d.uint()}
		s.indexes.Set(x.Definition.ID, x)
		s.count(x, 1)
		if f := &x.Definition; f.State != index.Dropping {
			s.names.Set(x.key(), f.ID)
		}
	case recordLedger:
		key, e := d.ledgerEntry()
		s.ledger.put(key, e)
	case recordUser:
		u := d.user()
		s.users.Set(u.Name, &u)
	case recordToken:
		x := d.token()
		s.tokens.Set(x.ID, &x)
	case recordSettings:
		b := d.bucketSettings()
		s.settings.Set(b.Bucket, b)
	default:
		if !s.loadRegistration(kind, d) && !s.loadRestore(kind, d) && !s.loadRebalance(kind, d) &&
			!s.loadDifference(kind, d) {
			d.fail("unknown type")
		}
	}
}

func (s *State) loadHeader(d *decoder) {
	s.appliedIndex, s.cas, s.clusterID = d.uint(), d.uint(), d.string()
	s.epoch, s.formatLevel, s.timeMS, s.wallMS, s.revision = d.uint(), d.uint(), d.int(), d.int(), d.uint()
	s.term, s.leader, s.limits = d.uint(), d.string(), d.limits()
	s.nextIndexID, s.nextCopyID, s.nextNodeID = index.ID(d.uint()), index.CopyID(d.uint()), index.NodeID(d.byte())
	s.ledger.next, s.rebalances.next = d.uint(), d.uint()
	s.passed = bucketNumbers{generation: d.uint(), stability: d.uint(), rollback: d.uint()}
}

// loadRegistration loads records of managers, projectors and indexers; it returns false for other kinds.
func (s *State) loadRegistration(kind byte, d *decoder) bool {
	switch kind {
	case recordManager:
		m := d.manager()
		s.managers.Set(m.ID, &m)
	case recordProjector:
		p := d.projector()
		s.projectors.Set(p.ID, &p)
	case recordIndexer:
		i := d.indexer()
		i.Evicting, i.Offline = d.bool(), d.absence()
		s.indexers.Set(i.Node, &i)
		s.nodes.Set(i.UUID, i.Node)
	case recordRemoved:
		s.removed.Set(d.string(), d.uint())
	default:
		return false
	}
	return true
}

// loadRestore loads records of a finished restore or one in progress; it returns false for other kinds.
func (s *State) loadRestore(kind byte, d *decoder) bool {
	switch kind {
	case recordRestored:
		s.restored = &Restored{ID: d.string(), Mode: RestoreMode(d.byte()), CAS: d.uint(), TimeMS: d.int(),
			FromID: d.string(), FromCAS: d.uint()}
	case recordStaging:
		s.staging = &Staging{ID: d.string(), Mode: RestoreMode(d.byte()), Bytes: d.uint()}
		d.fixed(s.staging.Sum[:])
		s.staging.SinceMS = d.int()
	case recordChunk:
		if s.staging == nil {
			d.fail("a piece of a restore that is not under way")
			return true
		}
		s.staging.chunks = append(s.staging.chunks, bytes.Clone(d.b))
		s.staging.Received += uint64(len(d.b))
		d.b = nil
	default:
		return false
	}
	return true
}
