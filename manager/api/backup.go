package api

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/internal/version"
	"tidemark/manager/api/v1"
	"tidemark/manager/consensus"
	"tidemark/manager/coordinator"
	"tidemark/statecontext"
)

const mediaBinary = "application/octet-stream"

// clusterRoutes are the calls about the cluster as a whole: backup and restore, upgrade, limits.
func (g backups) clusterRoutes() []route {
	return []route{
		{method: "GET", path: "/v1/backup", handle: g.backup, role: RoleAdmin, leader: true, limit: v1.BackupTimeout,
			doc: operation{
				id: "getBackup", tag: tagCluster, summary: "The StateContext as a file that can be restored: definitions, " +
					"placements, limits",
				answers: []answer{{status: 200, means: "the file; it ends with a SHA-256 of all before it", media: mediaBinary,
					headers: []string{HeaderCAS}}}}},
		{method: "POST", path: "/v1/restore", handle: g.restore, role: RoleAdmin, leader: true, limit: v1.BackupTimeout,
			body: statecontext.MaxBackupBytes, upload: true, doc: operation{
				id: "restore", tag: tagCluster, summary: "Restore a backup: all of it or nothing. Writes are refused meanwhile",
				params: []param{
					{name: "mode", required: true, enum: []string{"in-place", "new-cluster"},
						means: "in-place: into the cluster it was made of. new-cluster: into another one without indexes; all indexes " +
							"are built"},
					{name: paramDryRun, enum: []string{"true", "false"}, means: "true: only report what would be done"}},
				headers: []string{HeaderKey}, upload: mediaBinary,
				answers: []answer{{status: 200, means: "restored, or what would be done", body: v1.RestoreReply{}}},
				codes: []errcode.Code{errcode.BackupUnusable, errcode.BackupOfOther,
					errcode.RestoreMismatch, errcode.FormatNotAllowed, errcode.PlacementImpossible, errcode.FormatTooOld,
					errcode.NoProjector}}},
		{method: "POST", path: "/v1/cluster:finalize-upgrade", handle: g.finalizeUpgrade, role: RoleAdmin, leader: true,
			limit: v1.WriteTimeout, doc: operation{
				id: "finalizeUpgrade", tag: tagCluster, summary: "Allow what needs the newest format level, permanently: no " +
					"older version can take part from then on",
				headers: []string{HeaderKey},
				answers: []answer{{status: 200, means: "the format level from now on", body: v1.FormatReply{}}},
				codes:   []errcode.Code{errcode.FormatNotAllowed}}},
		{method: "GET", path: "/v1/limits", handle: g.limits, role: RoleRead, leader: true, limit: v1.ReadTimeout,
			doc: operation{
				id: "getLimits", tag: tagCluster, summary: "The limits in force",
				answers: []answer{{status: 200, means: "the limits", body: statecontext.Limits{}, headers: readHeaders()}}}},
		{method: "PATCH", path: "/v1/limits", handle: g.setLimits, role: RoleAdmin, leader: true, limit: v1.WriteTimeout,
			doc: operation{
				id: "setLimits", tag: tagCluster, summary: "Change limits: those that are named; 0 is the default",
				headers: []string{HeaderKey}, body: v1.LimitsChange{},
				answers: []answer{{status: 200, means: "the limits from now on", body: statecontext.Limits{}}},
				codes:   []errcode.Code{errcode.InvalidArgument}}},
	}
}

// backup sends the leader's state, after verifying its leadership.
func (g backups) backup(w http.ResponseWriter, r *http.Request) error {
	if err := g.cfg.Raft.ReadBarrier(r.Context()); err != nil {
		return err
	}
	s := g.cfg.Raft.State()
	w.Header().Set(HeaderCAS, strconv.FormatUint(s.CAS(), 10))
	w.Header().Set("Content-Type", mediaBinary)
	if r.Method == http.MethodHead {
		return nil
	}
	if err := statecontext.WriteBackup(w, s, g.now().UnixMilli(), version.Number); err != nil {
		g.cfg.Logger.Info("a backup was cut off", "error", err) // without its end the file is not a backup
		panic(http.ErrAbortHandler)
	}
	return nil
}

// restore reads the whole file and checks it before it changes anything.
func (g backups) restore(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	mode := statecontext.RestoreInPlace
	switch q.Get("mode") {
	case statecontext.RestoreInPlace.String():
	case statecontext.RestoreNewCluster.String():
		mode = statecontext.RestoreNewCluster
	default:
		return rpc.Refuse(errcode.BadRequest, "mode=%s: want in-place or new-cluster", q.Get("mode"))
	}
	data, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	b, err := statecontext.ReadBackupUpTo(g.cfg.Raft.FormatLevel(), data)
	if err != nil {
		return rpc.Refuse(errcode.BackupUnusable, "nothing was changed: %v", err)
	}
	req, err := request(r, 0, []byte(q.Get("mode")))
	if err != nil {
		return err
	}
	id := rand.Text()
	if req != nil {
		sum := sha256.Sum256([]byte(req.Principal + "\x00" + req.Key))
		id = hex.EncodeToString(sum[:16])
	}
	o, err := g.cfg.Coordinator.Restore(r.Context(), coordinator.RestoreRequest{ID: id, Backup: b, Mode: mode,
		DryRun: q.Get(paramDryRun) == "true"})
	if err != nil {
		return err
	}
	rpc.Write(w, r, http.StatusOK, v1.RestoreReply{CAS: o.CAS, Epoch: o.Epoch, DryRun: q.Get(paramDryRun) == "true",
		Replayed: o.Replayed,
		Backup:   b.BackupInfo, Indexes: o.Plan})
	return nil
}

// behindLevel returns the voters that do not support a format level, with the one that they support.
func behindLevel(s *statecontext.State, servers []consensus.Server, level uint64) (behind []string) {
	for _, v := range servers {
		m := s.Manager(v.ID)
		switch {
		case m == nil:
			behind = append(behind, v.ID+" (has not registered)")
		case m.FormatLevel < level:
			behind = append(behind, fmt.Sprintf("%s (up to %d)", m.Name, m.FormatLevel))
		}
	}
	return behind
}

// finalizeUpgrade raises the format level to the newest that any voter supports, if every voter supports it.
func (g backups) finalizeUpgrade(w http.ResponseWriter, r *http.Request) error {
	if err := g.cfg.Raft.ReadBarrier(r.Context()); err != nil {
		return err
	}
	s, level := g.cfg.Raft.State(), g.cfg.Raft.FormatLevel()
	servers, err := g.cfg.Raft.Servers()
	if err != nil {
		return err
	}
	for _, v := range servers {
		if m := s.Manager(v.ID); m != nil { // the leader may be the one that is behind
			level = max(level, m.FormatLevel)
		}
	}
	if behind := behindLevel(s, servers, level); len(behind) > 0 {
		return rpc.Refuse(errcode.FormatNotAllowed, "managers %s do not support format level %d: install the version "+
			"of tidemark that the others run, and restart them", strings.Join(behind, ", "), level)
	}
	if level > s.FormatLevel() {
		if err := g.write(r, &statecontext.SetFormatLevel{Level: level}); err != nil {
			return err
		}
	}
	rpc.Write(w, r, http.StatusOK, v1.FormatReply{FormatLevel: g.cfg.Raft.State().FormatLevel()})
	return nil
}

// write proposes a user's change.
func (g *ground) write(r *http.Request, command statecontext.Body) error {
	req, err := bodyRequest(r, 0)
	if err != nil {
		return err
	}
	res, err := g.cfg.Raft.Propose(r.Context(), statecontext.Command{Request: req, Body: command})
	if err == nil {
		err = res.Err()
	}
	return err
}

func (g backups) limits(w http.ResponseWriter, r *http.Request) error {
	s, err := g.read(w, r)
	if err != nil {
		return err
	}
	rpc.Write(w, r, http.StatusOK, s.Limits())
	return nil
}

func (g backups) setLimits(w http.ResponseWriter, r *http.Request) error {
	var change v1.LimitsChange
	if err := rpc.Read(r, &change); err != nil {
		return err
	}
	// One at a time, so that concurrent changes of different limits are all kept; only the leader makes them.
	select {
	case g.limiting <- struct{}{}:
		defer func() { <-g.limiting }()
	case <-r.Context().Done():
		return r.Context().Err()
	}
	if err := g.cfg.Raft.ReadBarrier(r.Context()); err != nil {
		return err
	}
	l := change.Apply(g.cfg.Raft.State().Limits())
	if err := l.Check(); err != nil {
		return rpc.Refuse(errcode.InvalidArgument, "nothing was changed: %v", err)
	}
	if err := g.write(r, &statecontext.SetLimits{Limits: l}); err != nil {
		return err
	}
	rpc.Write(w, r, http.StatusOK, g.cfg.Raft.State().Limits())
	return nil
}
