# farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
#
# What workers tell each other during distributed backward passes; README.md says what it means.
# Append only: add fields with the next number; never renumber, retype or reuse one.
@0xadfa3b34ac6b5ed4;

using Cxx = import "/capnp/c++.capnp";
using Value = import "/farspan/c10d/values/value.capnp";
$Cxx.namespace("farspan::dist_autograd::schema");

# Kinds AUTOGRAD CONTROL and AUTOGRAD GRADIENT.
struct Message {
  context @0 :UInt64;
  initiator @1 :Int32;
  number @2 :UInt64;
  fast @3 :Bool;
  retainGraph @4 :Bool;
  remainingUs @5 :UInt64;            # until the deadline; 0: there is none
  union {
    question :group {
      id @6 :UInt64;
      sends @7 :List(UInt64);
    }
    answer :group {
      question @8 :UInt64;
      workers @9 :List(Int32);
    }
    go @10 :Void;
    gradient :group {                # its tensors are those of the payload
      send @11 :UInt64;
      payload @12 :Value.Payload;
    }
    done @13 :List(Int32);           # contacted
    abort @14 :Data;                 # a wire failure
    release @15 :Void;               # the context is over: let go of all that is kept for it
  }
  lost @16 :Bool;                    # release: because a worker that had a part in it was lost
}
