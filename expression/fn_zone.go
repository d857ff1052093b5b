package expression

import (
	"archive/zip"
	"bytes"
	_ "embed" // the zone data
	"io"
	"time"
)

// ZoneData is the version of the IANA time zone database in this binary, whatever the machine has: a zone means the
// same in every process of a cluster.
const ZoneData = "2025c"

// zoneArchive is zoneinfo.zip of Go's distribution, made from the database, which is in the public domain.
//
//go:embed zoneinfo/zoneinfo.zip
var zoneArchive []byte

// zoneFiles finds the files of the archive by their names; it is never written after it was made.
var zoneFiles = readZones()

// maxZoneBytes limits the data of one zone.
const maxZoneBytes = 1 << 20

// zoneNamed returns a time zone by its name in the database, such as Europe/Berlin. A Scratch keeps those that were
// asked for, which are no more than there are in the archive.
func (s *Scratch) zoneNamed(v value) (*time.Location, bool) {
	if v.kind != kindString || len(v.data) > maxDateBytes {
		return nil, false
	}
	name := string(v.data)
	if name == "" || name == "UTC" {
		return time.UTC, true
	}
	if known := s.zones[name]; known != nil {
		return known, true
	}
	file := zoneFiles[name]
	if file == nil {
		return nil, false
	}
	zone, err := readZone(name, file)
	if err != nil {
		return nil, false
	}
	if s.zones == nil {
		s.zones = map[string]*time.Location{}
	}
	s.zones[name] = zone
	return zone, true
}

func readZones() map[string]*zip.File {
	archive, err := zip.NewReader(bytes.NewReader(zoneArchive), int64(len(zoneArchive)))
	if err != nil {
		panic("the zone data in this binary: " + err.Error()) // it was read by a test
	}
	files := make(map[string]*zip.File, len(archive.File))
	for _, f := range archive.File {
		files[f.Name] = f
	}
	return files
}

func readZone(name string, file *zip.File) (*time.Location, error) {
	r, err := file.Open()
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(r, maxZoneBytes))
	if err != nil {
		return nil, err
	}
	return time.LoadLocationFromTZData(name, data)
}
