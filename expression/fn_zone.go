package expression

import (
	"archive/zip"
	"bytes"
	_ "embed" // the zone data
	"io"
	"time"
)

// ZoneData is the version of the IANA time zone database in this binary, which is used instead of the machine's: a
// zone means the same in every process of a cluster.
const ZoneData = "2025c"

// zoneArchive is zoneinfo.zip of the Go distribution, built from the database, which is in the public domain.
//
//go:embed zoneinfo/zoneinfo.zip
var zoneArchive []byte

// zoneFiles maps names to the archive's files; it is read-only.
var zoneFiles = readZones()

// maxZoneBytes bounds the data of one zone.
const maxZoneBytes = 1 << 20

// zoneNamed returns a time zone by its name in the database, such as Europe/Berlin. The Scratch caches it; the number
// of names in the archive bounds the cache.
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
		panic("the zone data in this binary: " + err.Error()) // a test has read every zone
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
