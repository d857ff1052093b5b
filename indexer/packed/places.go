package packed

import (
	"encoding/binary"

	"tidemark/keyversion"
)

// Interned keeps one object for each list of places that events of a bucket have as their Rest, so that those which
// wait to be written share it, and a batch has few: each frame that is decoded may bring an object of its own.
type Interned struct {
	objects map[*keyversion.Places]*keyversion.Places // that came of late, and what each is
	byBytes map[string]*keyversion.Places
	bytes   int
	key     []byte
}

const (
	// mostInterned bounds the bytes of lists, as keys, and mostObjects the objects; when there are more all are forgotten.
	mostInterned = 1 << 20
	mostObjects  = 1 << 10
)

// Of returns the object of a list.
func (i *Interned) Of(p *keyversion.Places) *keyversion.Places {
	if p == nil {
		return nil
	}
	if is := i.objects[p]; is != nil {
		return is
	}
	i.key = i.key[:0]
	for _, at := range p.All() {
		i.key = binary.LittleEndian.AppendUint64(i.key, uint64(at.Index))
		i.key = binary.LittleEndian.AppendUint16(i.key, uint16(at.Slice))
	}
	is := i.byBytes[string(i.key)]
	if is == nil {
		if i.bytes += len(i.key); i.byBytes == nil || i.bytes > mostInterned {
			i.byBytes, i.bytes = map[string]*keyversion.Places{}, len(i.key)
		}
		is = p
		i.byBytes[string(i.key)] = is
	}
	if i.objects == nil || len(i.objects) >= mostObjects {
		i.objects = map[*keyversion.Places]*keyversion.Places{}
	}
	i.objects[p] = is
	return is
}
