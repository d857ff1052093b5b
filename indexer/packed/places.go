package packed

import (
	"encoding/binary"

	"tidemark/keyversion"
)

// Interned maps equal lists of places, which events have as their Rest, to one object, so that queued events share it
// and a batch has few of them. Without it each decoded frame would add an object.
type Interned struct {
	objects map[*keyversion.Places]*keyversion.Places // recently seen objects and what they are mapped to
	byBytes map[string]*keyversion.Places
	bytes   int
	key     []byte
}

const (
	// mostInterned bounds the bytes of lists, as keys, and mostObjects the number of objects. Beyond a limit all are
	// dropped.
	mostInterned = 1 << 20
	mostObjects  = 1 << 10
)

// Of returns the shared object of a list.
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
