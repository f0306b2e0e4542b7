package main

import (
	"os/signal"

	"github.com/spf13/cobra"

	"culvert/xfrm/divert"
)

// defaultExecSocket is where a gateway takes programs in, unless its configuration says otherwise.
const defaultExecSocket = "/run/culvert/exec.sock"

func execCommand() *cobra.Command {
	var o divert.Options
	c := &cobra.Command{
		Use:   "exec [--socket PATH] [--compat] [--] COMMAND [ARG]...",
		Short: "Run an IKE daemon, or any program that speaks XFRM, with this gateway in the kernel's place",
		Long: `Run a program with the gateway in the place of the kernel's XFRM: its sockets of NETLINK_XFRM, and the ESP of its UDP
sockets, are the gateway's, which must run with [ike] enabled. Everything else, IKE included, is the kernel's as ever. The program
takes the place of this process, with its process ID, and all that it starts is under the gateway too.

Before the program is started it is tried whether the kernel and the gateway can do what that takes; what cannot be is said, with its
remedy. The exit code is the program's own; 125 if culvert could not start it, 126 if it cannot be executed, 127 if it is not found.

--compat is for programs that look at the address family of what they receive, such as those that use vishvananda/netlink.`,
		Example: `  sudo culvert exec -- /usr/sbin/charon-systemd
  sudo culvert exec -- ipsec start --nofork
  sudo culvert exec -- ip xfrm state`,
		DisableFlagsInUseLine: true,
		Args:                  cobra.MinimumNArgs(1),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveDefault // a file: the program, or what it takes
		},
		RunE: func(_ *cobra.Command, args []string) error {
			// A signal that is caught here would be ignored there only until exec, and one that is ignored for ever.
			signal.Reset()
			return divert.Exec(o, args)
		},
	}
	c.Flags().SetInterspersed(false) // what stands behind the command is the command's
	c.Flags().StringVar(&o.Socket, "socket", defaultExecSocket, "where the gateway takes programs in: ike.socket of its configuration")
	c.Flags().BoolVar(&o.Compat, "compat", false, "divert what the program receives too; each recvmsg costs a round trip to the gateway")
	c.MarkFlagFilename("socket")
	return c
}
