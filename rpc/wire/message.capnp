# farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
#
# The metadata of the frames that connections themselves send. Append only: add fields with the next
# number; never renumber, retype or reuse one. WIRE.md says when each is sent.
@0xf46e95984993cd22;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("farspan::wire::schema");

# The first frame on a connection, from the side that opened it (kind HELLO), and its answer (kind
# WELCOME). Both sides introduce themselves alike.
struct Hello {
  minVersion @0 :UInt8;      # of the wire, that this side can speak
  maxVersion @1 :UInt8;
  features @2 :UInt64;       # bits; both sides use what both offer
  name @3 :Text;             # of the worker
  rank @4 :Int32;
  instanceHigh @5 :UInt64;   # 128 random bits, drawn at start: tells a restarted worker apart
  instanceLow @6 :UInt64;
  generation @7 :Text;       # of the job; workers of another one are refused
  pid @8 :Int32;
  host @9 :Text;
  functions @10 :List(Function);
  authentication @11 :Data;  # empty: none
  probe @12 :UInt64;         # where that process has both halves of the instance, the high one first
  line @13 :UInt64;          # of the opener: a random number of this connection; or
  laneOf @14 :UInt64;        # of the connection that this one is a lane of; 0: of none
}

struct Function {
  id @0 :UInt64;
  name @1 :Text;
  signature @2 :Text;
}

# Kind REFUSE, and any reply whose FAILED flag is set.
struct Failure {
  code @0 :UInt16;
  message @1 :Text;
  worker @2 :Text;
  operation @3 :Text;
  advice @4 :Text;
  remoteType @5 :Text;
  trail @6 :Text;
  elapsedUs @7 :Int64 = -1;
}
