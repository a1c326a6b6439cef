// libuv closes descriptors by raw system calls. ThreadSanitizer does not see those, and takes a
// later descriptor of the same number for the closed one: a race with whoever used that. So these
// are shown to it: tests under ThreadSanitizer are linked with --wrap=syscall.
#include <sys/syscall.h>

#include <cstdarg>

extern "C" {
void __sanitizer_syscall_pre_impl_close(long descriptor);
long __real_syscall(long number, ...);

long __wrap_syscall(long number, ...) {
  va_list list;
  va_start(list, number);
  long arguments[6];  // more than most calls have: the kernel looks at its own only
  for (long& argument : arguments) argument = va_arg(list, long);
  va_end(list);
  if (number == SYS_close) __sanitizer_syscall_pre_impl_close(arguments[0]);
  return __real_syscall(number, arguments[0], arguments[1], arguments[2], arguments[3],
                        arguments[4], arguments[5]);
}
}
