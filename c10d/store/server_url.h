// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// What URLs of stores in servers of their own say: redis://user:password@host:port/0?prefix=job.
#pragma once

#include <string>

#include <farspan/c10d/net/address.h>
#include <farspan/c10d/store/rendezvous.h>

namespace farspan::dist {

struct ServerPlace {
  net::HostPort where;
  std::string user;      // empty: none
  std::string password;  // the URL's, or else what the environment says
  std::string path;      // what follows the first '/'
};

// Reads the parts, with %2F and the like in user and password; no error shows the password. A file
// with a password is a regular one of at most 4 KiB.
//   throws  Error kInvalidArgument, also where the file with the password cannot be read
ServerPlace server_place(const RendezvousUrl& url, const LaunchEnvironment& environment);

// "farspan:<prefix>:", which no other job's names begin with.
//   throws  Error kInvalidArgument: the prefix is empty, longer than 200 bytes, or has bytes other
//           than letters, digits, '.', '_', '-' and '/'
std::string names_of_job(const std::string& prefix);

// "redis" of "redis://host:port"; empty where the text does not begin like a URL.
std::string scheme_of(const std::string& url);

// What may be shown of a URL, a mistyped one too: all of file://, env:// and tcp://; else the
// scheme and what is surely a host, a port and a number of a database. '@' belongs to redis:// and
// etcd://.
std::string without_password(const std::string& url);

}  // namespace farspan::dist
