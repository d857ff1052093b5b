//go:build failpoints

package cli

import (
	"github.com/spf13/pflag"

	"tidemark/internal/failpoint"
	"tidemark/internal/localcluster"
	"tidemark/manager"
)

// managerFailpoints adds a manager's flag for simulated faults. The returned function sets them, after flags are
// parsed.
func managerFailpoints(fl *pflag.FlagSet, cfg *manager.Config) func() error {
	dir := fl.String("failpoints", "", "folder with faults, for tests")
	fl.Lookup("failpoints").Hidden = true
	return func() (err error) {
		faults := failpoint.Dir(*dir)
		cfg.Failpoint, cfg.Hold = faults.Write(cfg.Name), faults.Hold()
		cfg.Now, err = faults.Clock(cfg.Name)
		return err
	}
}

// upFailpoints adds the flag of tidemark up, which passes the folder on to its managers.
func upFailpoints(fl *pflag.FlagSet, cfg *localcluster.Config) {
	fl.Func("failpoints", "folder with faults for the managers, for tests", func(dir string) error {
		cfg.ManagerArgs = []string{"--failpoints", dir}
		return nil
	})
	fl.Lookup("failpoints").Hidden = true
}
