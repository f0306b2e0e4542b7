// Package peers runs other tunnels between the gateways of a lab, to be measured beside culvert in the same run.
package peers
