# HOCCL_SANITIZE: --with-sanitizer=address|thread builds the whole tree with that sanitizer (address brings undefined).
AC_DEFUN([HOCCL_SANITIZE], [
  AC_ARG_WITH([sanitizer], [AS_HELP_STRING([--with-sanitizer=KIND], [address (with undefined) or thread])], [], [with_sanitizer=no])
  AS_CASE([$with_sanitizer],
    [no], [SANITIZE=],
    [address], [SANITIZE="-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer"],
    [thread], [SANITIZE="-fsanitize=thread -fno-omit-frame-pointer"],
    [AC_MSG_ERROR([--with-sanitizer takes address or thread, not $with_sanitizer])])
  CFLAGS="$CFLAGS $SANITIZE"
  LDFLAGS="$LDFLAGS $SANITIZE"
  AM_CONDITIONAL([SANITIZE_THREAD], [test "x$with_sanitizer" = xthread])
  AM_CONDITIONAL([SANITIZE_ADDRESS], [test "x$with_sanitizer" = xaddress])
])
