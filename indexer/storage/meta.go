package storage

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/cockroachdb/pebble/v2/vfs"

	"tidemark/index"
	"tidemark/timestamp"
)

// Meta identifies a copy. It is written once, at creation.
type Meta struct {
	Copy       index.CopyID  `json:"copy"`
	Index      index.ID      `json:"index"`
	Slice      index.SliceID `json:"slice"`
	Bucket     string        `json:"bucket"`
	BucketUUID string        `json:"bucket_uuid"`
	VBuckets   int           `json:"vbuckets"`
	Desc       []bool        `json:"desc"`
	IsPrimary  bool          `json:"is_primary"`
	// CreatedMS is that of index.Definition. Together with Index it distinguishes indexes even if ids started again
	// lower.
	CreatedMS int64 `json:"created_ms"`
}

// descends reports whether the leading component of keys is in descending order.
func (m *Meta) descends() bool { return len(m.Desc) > 0 && m.Desc[0] }

func (m Meta) check() error {
	switch {
	case m.Copy == 0:
		return fmt.Errorf("%w: copy id 0", ErrInvalid)
	case m.Bucket == "":
		return fmt.Errorf("%w: copy %s has no bucket", ErrInvalid, m.Copy)
	case m.VBuckets < 1 || m.VBuckets > timestamp.MaxVBuckets:
		return fmt.Errorf("%w: copy %s with %d vbuckets, want 1 to %d", ErrInvalid, m.Copy, m.VBuckets, timestamp.MaxVBuckets)
	}
	return nil
}

// metaFile is the content of the file META: the copy and the folder with its current data.
type metaFile struct {
	Meta
	Generation uint64 `json:"generation"`      // data is in folder db-<generation>
	Birth      uint64 `json:"birth,omitempty"` // random, distinguishes the folder from others of the same copy
}

// Small files of this package consist of one line with the magic, their name, the format version and a checksum,
// followed by JSON. The checksum covers everything else, so that a damaged version is not mistaken for a newer one:
// newer formats start with such a line, too.
const (
	fileMagic      = "tidemark"
	fileVersion    = 1
	maxSmallFile   = 64 << 20
	diskCategory   = vfs.DiskWriteCategory("tidemark-meta")
	metaName       = "META"
	droppedName    = "DROPPED"
	checkpointName = "CHECKPOINT"
	tmpSuffix      = ".tmp"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var errSmallFile = errors.New("bad header or checksum")

func smallSum(kind string, version int, body []byte) uint32 {
	sum := crc32.Checksum(fmt.Appendf(nil, "%s %s %d\n", fileMagic, kind, version), castagnoli)
	return crc32.Update(sum, castagnoli, body)
}

// writeSmall replaces a file atomically and durably: it writes a temporary file, syncs it, renames it and syncs the
// folder.
func writeSmall(fs vfs.FS, dir, name string, content any) error {
	body, err := json.Marshal(content)
	if err != nil {
		return fmt.Errorf("encode %s: %w", name, err)
	}
	head := fmt.Appendf(nil, "%s %s %d %08x\n", fileMagic, name, fileVersion, smallSum(name, fileVersion, body))
	path := fs.PathJoin(dir, name)
	if err := writeSynced(fs, path+tmpSuffix, append(head, body...)); err != nil {
		return err
	}
	if err := fs.Rename(path+tmpSuffix, path); err != nil {
		return err
	}
	return syncDir(fs, dir)
}

func writeSynced(fs vfs.FS, path string, content []byte) error {
	f, err := fs.Create(path, diskCategory)
	if err != nil {
		return err
	}
	if _, err = f.Write(content); err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

func syncDir(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// readSmall reads and checks a file that writeSmall wrote. Errors name the file.
func readSmall(fs vfs.FS, dir, name string, content any) error {
	path := fs.PathJoin(dir, name)
	all, err := readFile(fs, path)
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	head, body, found := bytes.Cut(all, []byte{'\n'})
	var magic, kind string
	var version int
	var sum uint32
	if n, err := fmt.Sscanf(string(head), "%s %s %d %x", &magic, &kind, &version, &sum); !found || n != 4 || err != nil ||
		magic != fileMagic || kind != name {
		return fmt.Errorf("read %s: %w: it does not begin with %q", path, errSmallFile, fileMagic+" "+name)
	}
	if got := smallSum(name, version, body); got != sum {
		return fmt.Errorf("read %s: %w: checksum %08x, want %08x", path, errSmallFile, got, sum)
	}
	if version > fileVersion {
		return fmt.Errorf("read %s: %w: format version %d, this program supports %d", path, ErrNewer, version, fileVersion)
	}
	if version != fileVersion {
		return fmt.Errorf("read %s: format version %d, this program supports %d", path, version, fileVersion)
	}
	if err := json.Unmarshal(body, content); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}

func readFile(fs vfs.FS, path string) ([]byte, error) {
	f, err := fs.Open(path)
	if err != nil {
		return nil, err
	}
	all, err := io.ReadAll(io.LimitReader(f, maxSmallFile+1))
	if err == nil && len(all) > maxSmallFile {
		err = fmt.Errorf("%w: more than %d bytes", errSmallFile, maxSmallFile)
	}
	return all, errors.Join(err, f.Close())
}

func exists(fs vfs.FS, path string) bool {
	_, err := fs.Stat(path)
	return err == nil
}
