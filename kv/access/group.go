package access

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Limits of groups.
const (
	// MaxGroups of a cluster, and MaxGroupsOfUser of one user.
	MaxGroups       = 256
	MaxGroupsOfUser = 32
)

// Group is a group of users as it is kept: its users have its roles beside their own.
type Group struct {
	ID string `json:"id"`
	// Description is for people.
	Description string `json:"description,omitempty"`
	Roles       []Role `json:"roles"`
}

// Check refuses a group that cannot be one. Error: ErrAccess.
func (g *Group) Check() error {
	if err := checkName("group", g.ID); err != nil {
		return err
	}
	if utf8.RuneCountInString(g.Description) > MaxName || !utf8.ValidString(g.Description) ||
		strings.ContainsFunc(g.Description, unicode.IsControl) {
		return fmt.Errorf("%w: group %q: the description must have at most %d characters, and no control characters",
			ErrAccess, g.ID, MaxName)
	}
	return checkRoles("group", g.ID, g.Roles)
}

// CheckGroups refuses groups that cannot be kept together: in order of their names, each once. Error: ErrAccess.
func CheckGroups(groups []Group) error {
	if len(groups) > MaxGroups {
		return fmt.Errorf("%w: %d groups, which are more than %d", ErrAccess, len(groups), MaxGroups)
	}
	for i := range groups {
		if err := groups[i].Check(); err != nil {
			return err
		}
		if i > 0 && groups[i-1].ID >= groups[i].ID {
			return fmt.Errorf("%w: group %q is listed twice, or out of order", ErrAccess, groups[i].ID)
		}
	}
	return nil
}

// PlaceGroup finds where a group is, or would have to be, among groups in order.
func PlaceGroup(groups []Group, id string) (int, bool) {
	return slices.BinarySearchFunc(groups, id, func(g Group, id string) int { return cmp.Compare(g.ID, id) })
}

// ParseGroups reads a list of names, divided by commas, and returns it in order, each name once.
func ParseGroups(text string) []string {
	out := []string{}
	for part := range strings.SplitSeq(text, ",") {
		if name := strings.TrimSpace(part); name != "" {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Groups are the groups, which nobody may change.
func (d *Directory) Groups() []Group { return d.kept.Groups }

// Group finds a group; nil when there is none of that name.
func (d *Directory) Group(id string) *Group {
	at, ok := PlaceGroup(d.kept.Groups, id)
	if !ok {
		return nil
	}
	return &d.kept.Groups[at]
}

// rolesOf are the roles of a user, and of the groups that it is in.
func (d *Directory) rolesOf(u *User) []Role {
	out := u.Roles
	for _, id := range u.Groups {
		if g := d.Group(id); g != nil {
			out = append(slices.Clip(out), g.Roles...)
		}
	}
	return out
}
