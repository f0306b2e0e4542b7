package main

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"culvert/cmd/culvert/internal/gateway"
	"culvert/offload"
)

func enginesCommand() *cobra.Command {
	var asJSON, check bool
	c := &cobra.Command{
		Use:   "engines",
		Short: "The engines of this machine, and for which transforms their answers were right",
		Long: `The engines of this machine. Before an engine may have a transform it must give the known answers for it: sealing and
opening, each key length, with and without ESN, and a packet that was tampered with must be refused. This runs them now.`,
		Example: `  culvert engines
  culvert engines --check                 exit status 1 unless every engine is right in every transform it offers`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			reports := offload.NewRegistry(gateway.Engines()...).Reports()
			if asJSON {
				if err := engineJSON(c.OutOrStdout(), reports); err != nil {
					return err
				}
			} else {
				printEngines(c.OutOrStdout(), reports)
			}
			if check {
				return checkEngines(c.ErrOrStderr(), reports)
			}
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().BoolVar(&check, "check", false, "fail unless every known answer is right")
	return c
}

func printEngines(w io.Writer, reports []offload.Report) {
	for _, r := range reports {
		if r.Err != nil {
			fmt.Fprintf(w, "%s: not on this machine: %s\n", r.Engine, gateway.Plain(r.Err))
			continue
		}
		fmt.Fprintf(w, "%s: %s; known answers took %v\n", r.Engine, r.Caps.Detail, r.Took.Round(1000))
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		for _, x := range r.Results {
			verdict := "admitted"
			if x.Err != nil {
				verdict = "REFUSED: " + gateway.Plain(x.Err)
			}
			fmt.Fprintf(t, "  %s\t%d known answers\t%s\n", x.Transform, x.Answers, verdict)
		}
		t.Flush()
	}
}

func engineJSON(w io.Writer, reports []offload.Report) error {
	type transform struct {
		ID       string `json:"id"`
		Answers  int    `json:"answers"`
		Admitted bool   `json:"admitted"`
		Reason   string `json:"reason,omitempty"`
	}
	type engine struct {
		Name       string      `json:"name"`
		Detail     string      `json:"detail,omitempty"`
		Reason     string      `json:"reason,omitempty"` // why it is not on this machine
		Transforms []transform `json:"transforms"`
	}
	all := []engine{}
	for _, r := range reports {
		e := engine{Name: r.Engine, Detail: r.Caps.Detail, Transforms: []transform{}}
		if r.Err != nil {
			e.Reason = gateway.Plain(r.Err)
		}
		for _, x := range r.Results {
			t := transform{ID: x.Transform.ID(), Answers: x.Answers, Admitted: x.Err == nil}
			if x.Err != nil {
				t.Reason = gateway.Plain(x.Err)
			}
			e.Transforms = append(e.Transforms, t)
		}
		all = append(all, e)
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(all)
}

func checkEngines(w io.Writer, reports []offload.Report) error {
	bad := 0
	for _, r := range reports {
		for _, x := range r.Results {
			if x.Err != nil {
				fmt.Fprintf(w, "culvert: engine %s, %s: %s\n", r.Engine, x.Transform, gateway.Plain(x.Err))
				bad++
			}
		}
	}
	if bad > 0 {
		return errReported
	}
	return nil
}
