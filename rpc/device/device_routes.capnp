# farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
#
# How device memory gets to another worker. Append only: add fields with the next number; never
# renumber, retype or reuse one.
@0xe6d1b0a1b0b7c2f4;

using Cxx = import "/capnp/c++.capnp";
using Value = import "/farspan/c10d/values/value.capnp";
$Cxx.namespace("farspan::schema");

# Kind DEVICE_PROBE: whether a device of the receiver can copy from one of the sender.
struct DeviceProbe {
  from @0 :Value.DeviceBytes;          # of one 64-bit number
  there @1 :Int16;                     # the receiver's device
  number @2 :UInt64;                   # what is to be found there
  ifInUse @3 :Bool;                    # only where the receiver's process uses that device already
}

# Its answer, where it was tried and goes well, or was not tried.
struct DeviceProbed {
  isNotInUse @0 :Bool;                 # so it was not tried
}

# Kind DEVICE_UNOPENED: what the receiver has lent could not be opened. Its answer has the bytes, as its one segment.
struct DeviceUnopened {
  here @0 :Int16;                      # the device that it is on, the receiver's
  there @1 :Int16;                     # the sender's, which it was for
  why @2 :Text;
  lent @3 :Value.DeviceBytes;          # of which the bytes are wanted; none: it is one-way
}

# Kind DEVICE_RECALL: the line on which the sender has lent these has ended. What the receiver has not begun to copy by
# now it never will.
struct DeviceRecall {
  lendings @0 :List(UInt64);           # DeviceBytes.lending
}

# Its answer.
struct DeviceRecalled {
  inUse @0 :List(UInt64);              # of those, what is still being copied: to be asked for again
}
