package client

import (
	"errors"
	"testing"

	"tidemark/scanport"
)

// TestAClosedDirectScanIsCut: who asks for a row after Close is told so, whatever had come by then.
func TestAClosedDirectScanIsCut(t *testing.T) {
	head := scanport.AppendHead(nil, nil)
	for _, tail := range []byte{scanport.More, scanport.End, scanport.Failure} {
		s := &directScan{}
		if err := s.answer.Read(scanport.Finish(append([]byte{}, head...), len(head), tail, nil)); err != nil {
			t.Fatal(err)
		}
		rows := &Rows{source: s}
		if err := rows.Close(); err != nil {
			t.Fatal(err)
		}
		if rows.Next() || !errors.Is(rows.Err(), ErrCut) {
			t.Errorf("tail %d: %v", tail, rows.Err())
		}
	}
}
