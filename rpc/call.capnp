# farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
#
# The metadata of calls and their answers. Append only: add fields with the next number; never
# renumber, retype or reuse one.
@0xb37ba8262301afdd;

using Cxx = import "/capnp/c++.capnp";
using Value = import "/farspan/c10d/values/value.capnp";
$Cxx.namespace("farspan::schema");

# Kinds CALL, REMOTE CALL and RREF CALL.
struct Call {
  function @0 :UInt64;                 # id: name and signature
  payload @1 :Value.Payload;           # its arguments
  extensions @2 :List(Extension);
  subject @3 :Data;                    # for the room that handles the kind: the reference it is about
}

# Their answers.
struct Return {
  payload @0 :Value.Payload;           # one value
  extensions @1 :List(Extension);
}

# What a room above rpc adds to a call, and reads at the other end.
struct Extension {
  room @0 :UInt16;                     # 1: distributed autograd
  first @1 :UInt64;
  second @2 :UInt64;
}
