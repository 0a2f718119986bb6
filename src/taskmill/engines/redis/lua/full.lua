-- What ends tasks, or looks after those that are there, goes on when the server's memory is full: else nothing could ever free it. A script is refused only
-- before its first write, and to remove what is not there is one that needs no memory.
call('DEL', P .. 'full')
